"""Workers that compute the jobs of a run: inline, batched, processes, cuda and ray."""
