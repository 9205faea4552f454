"""Detection of an object's interface: WSGI, ASGI, or neither."""

import functools
import unittest

from harness import ROOT  # noqa: F401  (puts the package on the path)

# isort: split
from penstock_worker.interface import interface_of, is_callable_without_arguments, is_paste_factory


def wsgi(environ, start_response):
    return []


async def asgi(scope, receive, send):
    pass


def passes_on(inner):
    def wrapper(*args, **kwargs):
        return inner(*args, **kwargs)

    return wrapper


class Wsgi:
    def __call__(self, environ, start_response):
        return []


class Asgi:
    async def __call__(self, scope, receive, send):
        pass


class Delegates:
    """Like ASGI middleware that is no coroutine function itself."""

    def __init__(self, app):
        self.app = app

    def __call__(self, scope, receive, send):
        return self.app(scope, receive, send)


class Wrapper:
    def __init__(self, app):
        self.wrapped = app

    def __call__(self, *args, **kwargs):
        return self.wrapped(*args, **kwargs)


class PerRequest:
    """PEP 3333 allows a class whose instances are the response."""

    def __init__(self, environ, start_response):
        pass

    def __iter__(self):
        return iter(())


class PerConnection:
    def __init__(self, scope, receive, send):
        pass

    def __await__(self):
        yield


class Slotted:
    """Has its call in a slot of the instance, as Sentry's ASGI middleware does."""

    __slots__ = ("__call__",)

    def __init__(self, call):
        self.__call__ = call


class Holder:
    def method(self, environ, start_response):
        return []

    async def coroutine(self, scope, receive, send):
        pass

    @staticmethod
    def static(environ, start_response):
        return []


def generator(environ, start_response):
    yield b""


async def async_generator(environ, start_response):
    yield b""


async def wrong_coroutine(environ, start_response):
    return []


def bound_first(settings, environ, start_response):
    return []


async def bound_first_async(settings, scope, receive, send):
    pass


def with_more(env, start_response, extra=None):
    return []


def asgi_without_async(scope, receive, send):
    return asgi(scope, receive, send)


def main(global_config, **settings):
    return wsgi


class Interface(unittest.TestCase):
    def test_an_object_says_what_it_is(self):
        rows = [
            ("function", wsgi, "wsgi"),
            ("coroutine function", asgi, "asgi"),
            ("generator", generator, "wsgi"),
            ("lambda", lambda e, s: [], "wsgi"),
            ("function that gives a coroutine", asgi_without_async, "asgi"),
            ("instance", Wsgi(), "wsgi"),
            ("async instance", Asgi(), "asgi"),
            ("delegating middleware", Delegates(Asgi()), "asgi"),
            ("bound method", Holder().method, "wsgi"),
            ("bound coroutine", Holder().coroutine, "asgi"),
            ("static method", Holder.static, "wsgi"),
            ("partial", functools.partial(bound_first, {}), "wsgi"),
            ("partial coroutine", functools.partial(bound_first_async, {}), "asgi"),
            ("partial by name", functools.partial(with_more, extra=1), "wsgi"),
            ("optional parameter", with_more, "wsgi"),
            ("decorated", functools.wraps(wsgi)(passes_on(wsgi)), "wsgi"),
            ("closure", passes_on(wsgi), "wsgi"),
            ("closure of asgi", passes_on(asgi), "asgi"),
            ("two closures", passes_on(passes_on(Asgi())), "asgi"),
            ("wrapper", Wrapper(Wsgi()), "wsgi"),
            ("wrapper of asgi", Wrapper(Wrapper(asgi)), "asgi"),
            ("class of responses", PerRequest, "wsgi"),
            ("class of connections", PerConnection, "asgi"),
            ("slot of an instance", Slotted(asgi_without_async), "asgi"),
            ("builtin", dict, None),
            ("any class", Wsgi, None),
            ("no parameters", lambda: wsgi, None),
            ("one parameter", lambda scope: asgi, None),
            ("four parameters", lambda a, b, c, d: None, None),
            ("coroutine of two", wrong_coroutine, None),
            ("async generator", async_generator, None),
            ("passes on to nothing known", Wrapper(None), None),
            ("number", 5, None),
            ("nothing", None, None),
        ]
        for name, target, expected in rows:
            with self.subTest(name):
                self.assertEqual(interface_of(target), expected)

    def test_a_wrapper_of_itself_is_nothing(self):
        wrapper = Wrapper(None)
        wrapper.wrapped = Wrapper(wrapper)
        self.assertIsNone(interface_of(wrapper))

    def test_what_may_be_called_without_arguments(self):
        self.assertTrue(is_callable_without_arguments(lambda: wsgi))
        self.assertTrue(is_callable_without_arguments(lambda settings=None, **more: wsgi))
        self.assertTrue(is_callable_without_arguments(Wsgi), "a class without parameters")
        self.assertFalse(is_callable_without_arguments(lambda settings: wsgi))
        self.assertFalse(is_callable_without_arguments(lambda *args: wsgi), "it may be a wrapper")
        self.assertFalse(is_callable_without_arguments(Wsgi()))

    def test_a_factory_of_paste_is_known_by_its_parameter(self):
        self.assertTrue(is_paste_factory(main))
        self.assertFalse(is_paste_factory(lambda config, **settings: wsgi))
        self.assertFalse(is_paste_factory(wsgi))


if __name__ == "__main__":
    unittest.main()
