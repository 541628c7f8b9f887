"""Expected wording of warnings and errors of workers."""

REPLACED = "it is replaced, and its job is repeated"
LOST_NODE = ("was lost with its node", "is unreachable")  # Ray may report either of them first
DEATH = {"killed": "was killed by SIGKILL", "ended": "ended with status 3", "left": "ended with status 70"}
DEATH_OF_MEMBER = "job 0 of client 0 ended 3 processes, the last one fell over: the script"
DEATH_OF_PROCESS = "job 0 of client 2 ended 3 processes, the last one was killed by SIGKILL"
DEATH_OF_ACTOR = "job 0 of client 1 ended 3 processes, the last one died"
UNSENDABLE = ("a job cannot be sent", "trained in this process")
UNSENDABLE_TO_MEMBER = "worker scripted: a job cannot be sent to a member (it is too strange)"
NO_PROCESS = "worker processes: no process could be started (Resource temporarily unavailable)"
FEWER_PROCESSES = "worker processes: only 2 could be started (Resource temporarily unavailable)"
UNFIT_FORKS = ("fork-based", "CUDA_VISIBLE_DEVICES=''", "inline is used")
UNFIT_NODES = "no node of the cluster can train, the last one: OSError: not at home"
OTHER_TORCH = "has torch {}, not 1.0: bits may differ"
NO_CLUSTER = "is not a Ray cluster, or does not answer"
