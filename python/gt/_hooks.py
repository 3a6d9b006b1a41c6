"""Hooks: callables in order of registration."""


class Hooks:
    """Callables in order of registration, each with a handle to remove it."""

    def __init__(self):
        self.list = {}
        self.next = 0

    def add(self, hook, first=False, **marks):
        """Registers `hook`; `marks` say how it wants to be called."""
        self.next += 1
        entry = {self.next: (hook, marks)}
        self.list = {**entry, **self.list} if first else {**self.list, **entry}
        return Handle(self, self.next)

    def __iter__(self):
        return iter([hook for hook, _ in self.list.values()])

    def marked(self):
        """Each hook with its number and its marks."""
        return [(number, hook, marks) for number, (hook, marks) in self.list.items()]

    def __bool__(self):
        return bool(self.list)


class Handle:
    """A registered hook, until `remove()` is called."""

    def __init__(self, hooks, number):
        self._hooks, self.id = hooks, number

    def remove(self):
        self._hooks.list.pop(self.id, None)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.remove()
