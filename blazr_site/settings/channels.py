"""Settings of Channels: WebSocket consumers, and the layer for low-rate events.

Tokens never go through the layer, because it drops messages at high rates.
"""

from __future__ import annotations

from blazr_site.settings.redis import _URLS

ASGI_APPLICATION = "blazr_site.asgi.application"
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [_URLS.channels], "prefix": "blazr:channels"},
    }
}
