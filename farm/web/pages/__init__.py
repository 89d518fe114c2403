"""The farm in a browser: pages made of the same operations as the API, written on the server and kept fresh by fragments.

Every page works without JavaScript. With it, the part of a page that changes asks for itself again (`live` in its template)
and is morphed into what came, so that focus, scroll and what stands open stay.
"""

from farm.web.pages.error_pages import readable, routes_of_pages

__all__ = ["readable", "routes_of_pages"]
