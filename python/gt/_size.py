"""Small tuples that look like PyTorch's."""


class Size(tuple):
    """The sizes of a tensor."""

    __slots__ = ()

    def numel(self):
        """How many elements a tensor of this size has."""
        n = 1
        for size in self:
            n *= size
        return n

    def __repr__(self):
        return f"gt.Size({list(self)})"

    def __add__(self, other):
        return Size(tuple(self) + tuple(other))

    def __radd__(self, other):
        return Size(tuple(other) + tuple(self))

    def __mul__(self, times):
        return Size(tuple(self) * times)

    __rmul__ = __mul__

    def __getitem__(self, index):
        item = tuple.__getitem__(self, index)
        return Size(item) if isinstance(index, slice) else item

    def __reduce__(self):
        return (Size, (tuple(self),))


class ValuesIndices(tuple):
    """Elements, and where they were found."""

    def __new__(cls, name, values, indices):
        self = tuple.__new__(cls, (values, indices))
        self._name = name
        return self

    @property
    def values(self):
        return self[0]

    @property
    def indices(self):
        return self[1]

    def __repr__(self):
        return f"gt.return_types.{self._name}(\nvalues={self[0]!r},\nindices={self[1]!r})"
