"""Expected wording of the messages of a live federation, as regular expressions."""

# test_child_processes.py
HOME_IN_USE = r"another site uses .*: stop it, or choose another"

# test_compression.py
TOO_LARGE_FOR_HALF = "over 65504"

# test_custom_strategies.py
USER_CODE = r"^it is user code, which is not executed here"

# test_federation_keys.py
KEY_READABLE_BY_OTHERS = r"can be read by others \(mode 640\): run 'chmod 600"
KEYS_EXIST = "already has keys, which are not replaced"
CERTIFICATE_EXPIRED = r"server.pem expired on [\d-]+: make a new one with 'offbeat keys --host "
CERTIFICATE_OF_ANOTHER_AUTHORITY = r"server.pem was not signed by .*ca.pem"
KEY_OF_ANOTHER_CERTIFICATE = r"server.key is not the key of"
INVALID_SITE_NAME = "a name consists of letters, digits"
INVALID_HOST = "is not a host name or address"
NO_SERVER_KEYS = "make keys with 'offbeat keys --host here --site NAME'"
NO_SITE_KEYS = "the folder that 'offbeat keys --site NAME' made"
NO_CERTIFICATE = "is not a certificate"
NO_PRIVATE_KEY = "is not a private key"
KEYS_DO_NOT_MATCH = "does not belong to"

# test_flower.py
RULE_NOT_SUPPORTED = "the rule Proximal: make the client app with"
NEEDS_OFFBEAT_SERVE = "offbeat serve"

# test_gateway.py
INVALID_ADDRESS = "is not HOST:PORT"
PORT_IN_USE = "is in use: choose another with --port"
UNKNOWN_HOST_ADDRESS = "this machine has no such address"

# test_grid_transport.py
NO_OFFBEAT_ARRAY = r"array type 'numpy.ndarray'"
LINK_LOST = "lost the connection to Flower's SuperLink: ConnectionError: refused"

# test_live_explained.py
KNOWN_SITES = "site-0, site-1, site-2"

# test_local_socket.py
MESSAGE_TOO_LONG = "over the limit"
NO_TRAINER = r"no trainer listens at .*: No such file"
TRAINER_EXISTS = r"listening at .* already"
NO_SOCKET = "is not a socket"

# test_message_codec.py
MISSPELT_RULE = r"unknown rule 'Proximl': did you mean 'Proximal'.*must exist at the site"
RULE_CANNOT_BE_SENT = "the rule Proximal"
UNKNOWN_RULE = "unknown rule"
CANNOT_BE_SENT = "cannot be sent"
OTHER_RUN = "for another run, 'run-2'"

# test_result_store.py
NO_GREETING = "has no greeting for run 'other'"
NO_SUCH_PARTITION = "partition 7: the experiment's data is divided among 3 clients, 0 to 2"
SERVER_EXPERIMENT = "the server's experiment"

# test_run_server.py
RULE_NO_DATACLASS = r"the rule Nowhere cannot be sent: a rule must be a dataclass"
IS_SIMULATION = "is a simulation"

# test_site_data.py
REAL_CALIBRATION = "calibration = 'real' needs the examples of all clients"
NO_PYTHON_FILE = "is not a Python file: 'offbeat new site NAME' writes one"
EXPIRED = "expired on 2026-06-09: ask the operator of the server"
NOT_VALID_YET = "is not valid before 2026-02-28 00:00 UTC: check the clock"
NO_PEM = "is not a PEM certificate"
CANNOT_READ = r"cannot read .*: No such file"

# test_site_failures.py
JOURNAL_DAMAGED = "damaged at byte 0"

# test_gateway.py, as plain text
NOT_ALLOWED = "is not allowed here"
KEY_NOT_REGISTERED = "is not registered"
FLOWER_REFUSED = "hospital-a at 127.0.0.1: /v1/fleet/activate-node: 412 no"
OTHER_AUTHORITY = "was not signed by the authority in"
STRANGER_NOT_REGISTERED = "the key of stranger is not registered here"
HOSPITAL_NOT_REGISTERED = "the key of hospital-a is not registered here"
USES_TLS = "uses TLS: give the folder of this site's keys"
SPEAKS_NO_TLS = "does not speak TLS"
NO_SERVER_LISTENS = "no server listens at"
HOST_UNKNOWN = "is unknown: check --server"
