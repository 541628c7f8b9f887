"""Expected wording of the errors that the persons of the journeys read."""

CHANGED_CODE = "sharp.py changed since the run was made"
UNKNOWN_SITE = "delays.means: unknown site 'zg': did you mean 'zug'?"
MISSING_SITE = "delays.means: zug is missing"
NUMBER_OF_CLIENTS = "omit clients"
UNKNOWN_MODEL = "did you mean 'Net'"
UNKNOWN_SETTING = "unknown setting 'hiden': did you mean 'hidden'"
