"""The farm's API on a port of this machine, in a thread of the test's process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from sqlalchemy import Engine

from farm.api.access import Access
from farm.services import ServiceUrls
from farm.services.session import Session
from farm.settings import Settings
from farm.web.app import make_app
from farm.web.security import Policy
from farm.web.serving import StreamingServer, config_of, listening


@contextmanager
def served(
    engine: Engine, *, tracking_uri: str = "", tokens: bool = False, policy: Callable[[str], Policy] | None = None
) -> Iterator[str]:
    """The URL of an API over that database and registry. `policy` makes its policy from that URL."""
    current = Settings(MLFLOW_TRACKING_URI=tracking_uri or None)
    urls = ServiceUrls(engine.url.render_as_string(hide_password=False), None, tracking_uri)
    opened = Session(current, urls, engine)
    with closing(Access(current, who="the tests", opened=opened)) as access, listening("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        own = Policy(tokens=tokens) if policy is None else policy(url)
        app = make_app(access, policy=own)
        server = StreamingServer(config_of(app, own), app.state.events)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield url
        finally:
            server.should_exit = True
            thread.join()
