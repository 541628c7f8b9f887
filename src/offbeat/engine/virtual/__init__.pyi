from offbeat.engine.virtual.virtual_engine import INTERRUPTED as INTERRUPTED
from offbeat.engine.virtual.virtual_engine import VirtualEngine as VirtualEngine
from offbeat.engine.virtual.virtual_engine import Watch as Watch
