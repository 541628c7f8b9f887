from offbeat import presets as presets
from offbeat import testing as testing
from offbeat.api import Compared as Compared
from offbeat.api import Simulation as Simulation
from offbeat.api import compare as compare
from offbeat.api import repeat as repeat
from offbeat.api import simulate as simulate
from offbeat.core.errors import OffbeatError as OffbeatError
from offbeat.core.strategies.aso_fed import AsoFed as AsoFed
from offbeat.core.strategies.ca2fl import CA2FL as CA2FL
from offbeat.core.strategies.fed_ogd import FedOGD as FedOGD
from offbeat.core.strategies.fedadam import FedAdam as FedAdam
from offbeat.core.strategies.fedasync import FedAsync as FedAsync
from offbeat.core.strategies.fedat import FedAT as FedAT
from offbeat.core.strategies.fedavg import FedAvg as FedAvg
from offbeat.core.strategies.fedavgm import FedAvgM as FedAvgM
from offbeat.core.strategies.fedbuff import FedBuff as FedBuff
from offbeat.core.strategies.fedcompass import FedCompass as FedCompass
from offbeat.core.strategies.fedfa import FedFa as FedFa
from offbeat.core.strategies.fedpac import FedPAC as FedPAC
from offbeat.core.strategies.fedprox import FedProx as FedProx
from offbeat.core.strategies.fedpsa import FedPSA as FedPSA
from offbeat.core.strategies.flanp import FLANP as FLANP
from offbeat.core.strategies.gradma import GradMA as GradMA
from offbeat.core.strategies.local import Local as Local
from offbeat.core.strategies.mifa import Mifa as Mifa
from offbeat.core.strategies.orthofl import OrthoFL as OrthoFL
from offbeat.core.strategies.pooled import Global as Global
from offbeat.core.strategies.safa import Safa as Safa
from offbeat.engine import Status as Status
from offbeat.experiment.spec import Experiment as Experiment
from offbeat.training import Training as Training

__version__: str
__all__: list[str]
