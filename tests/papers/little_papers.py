"""A world of half a second, for tests of what is made of runs."""

from __future__ import annotations

from offbeat.papers.run_store import World

# two clients, two methods, three updates on made-up pictures
WORLD = World("orthofl/motivation-30", "quick", until="20s", stand_in=True)
