"""A bucket that an address names, which need not be the run's own, as the user's other programs open it.

The variables AWS_… and the profile that they name give its server's address, its region and the keys.
"""

import botocore.session
from botocore.configprovider import ConfiguredEndpointProvider

from echo_queue.connections.storage.endpoint import StoreEndpoint

REGION = "us-east-1"


def by_environment(bucket: str) -> StoreEndpoint:
    """Returns the endpoint of a bucket as the environment and its profile name the server; Amazon's if they do not.

    Raises botocore's own errors for a profile that cannot be read.
    """
    session = botocore.session.Session()
    region = session.get_config_variable("region") or REGION
    named = None
    if not session.get_config_variable("ignore_configured_endpoint_urls"):
        named = ConfiguredEndpointProvider(session.full_config, session.get_scoped_config(), "s3").provide()
    return StoreEndpoint(named or f"https://s3.{region}.amazonaws.com", bucket, region=region)
