"""Every case of both protocols, in the order in which they are asked: what changes the servers comes last."""

from tests.differential.http_extensions import extensions
from tests.differential.http_inferences import inferences
from tests.differential.http_mistakes import mistakes
from tests.differential.http_reads import reads
from tests.differential.http_repository import repository
from tests.differential.rpc_cases import rpc_cases

HTTP = (*reads(), *inferences(), *mistakes(), *extensions(), *repository())
RPC = tuple(rpc_cases())
