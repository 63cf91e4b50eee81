"""Settings of the site, one module per subject; ``read`` gets values from option, environment or file.

``python -m blazr_site.settings`` prints every variable with its default.
"""

from blazr_site.settings import read as _read
from blazr_site.settings.api import *  # noqa: F403
from blazr_site.settings.base import *  # noqa: F403
from blazr_site.settings.batches import *  # noqa: F403
from blazr_site.settings.celery import *  # noqa: F403
from blazr_site.settings.channels import *  # noqa: F403
from blazr_site.settings.database import *  # noqa: F403
from blazr_site.settings.limits import *  # noqa: F403
from blazr_site.settings.llm import *  # noqa: F403
from blazr_site.settings.logging import *  # noqa: F403
from blazr_site.settings.models import *  # noqa: F403
from blazr_site.settings.redis import *  # noqa: F403
from blazr_site.settings.serving import *  # noqa: F403
from blazr_site.settings.storage import *  # noqa: F403

_read.check_file()
