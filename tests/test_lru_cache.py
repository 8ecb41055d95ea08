"""LRUCache, compared with a list that is searched from its end."""

import pickle

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from wds_tools.lru_cache import LRUCache

KEYS = st.integers(0, 9)
SIZES = st.integers(0, 40)


class Comparison(RuleBasedStateMachine):
    """Any sequence of calls, and a list of (key, value, size), least recently used first."""

    def __init__(self):
        super().__init__()
        self.cache = LRUCache(max_items=5, max_bytes=100)
        self.model = []
        self.values = iter(range(10**9))

    def _kept(self, key):
        return next((item for item in self.model if item[0] == key), None)

    @rule(key=KEYS, size=SIZES)
    def put(self, key, size):
        value = next(self.values)
        self.cache.put(key, value, size)
        self.model = [*(item for item in self.model if item[0] != key), (key, value, size)]
        while len(self.model) > 5 or sum(size for *_, size in self.model) > 100:
            del self.model[0]

    @rule(key=KEYS)
    def get(self, key):
        item = self._kept(key)
        assert self.cache.get(key) == (item and item[1])
        if item:
            self.model.remove(item)
            self.model.append(item)

    @rule()
    def travel_to_another_process(self):
        self.cache = pickle.loads(pickle.dumps(self.cache))

    @precondition(lambda self: self.model)
    @rule(key=KEYS)
    def put_more_than_the_limit(self, key):
        self.cache.put(key, "large", 101)
        self.model = [(key, "large", 101)]
        assert self.cache.bytes == 101
        self.put(key, 1)

    @invariant()
    def holds_the_same_keys(self):
        kept = {key for key, *_ in self.model}
        assert self.cache.missing(reversed(range(10))) == [key for key in reversed(range(10)) if key not in kept]
        assert len(self.cache) == len(self.model)
        assert self.cache.bytes == sum(size for *_, size in self.model)


TestLRUCache = Comparison.TestCase


def test_checking_which_keys_are_missing_does_not_count_as_use():
    cache = LRUCache(max_items=2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.missing(["a", "c"]) == ["c"]
    cache.put("c", 3)
    assert cache.missing(["a", "c"]) == ["a"]
    assert cache.get("b") == 2


def test_without_limits_nothing_is_evicted():
    cache = LRUCache()
    for number in range(1000):
        cache.put(number, number, 1 << 40)
    assert [cache.get(number) for number in range(1000)] == list(range(1000))
