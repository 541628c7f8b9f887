"""Workers compute the jobs of a run; the interface is `offbeat.engine.worker.Worker`.

A worker decides when and where jobs are computed, never what they compute, so any worker can resume any run.
`registry` lists them by name, makes them, and chooses one for `auto`:

- `inline`: one job at a time in this process;
- `processes`: forked processes of this machine, with identical results;
- `batched`: many jobs as one tensor program, within rounding of `inline`; `cuda` is the same on a GPU;
- `ray`: processes of a Ray cluster.

`job_queue` distributes jobs to several processes, `process_pool` starts and ends processes for jobs and whole runs.
"""

from offbeat._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
