from offbeat.api.progress_line import format_duration as format_duration
from offbeat.api.run_comparison import Compared as Compared
from offbeat.api.run_comparison import compare as compare
from offbeat.api.run_simulation import repeat as repeat
from offbeat.api.run_simulation import simulate as simulate
from offbeat.api.simulation_result import Simulation as Simulation
