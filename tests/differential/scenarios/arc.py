"""ARC's lists, ghosts and target."""

from __future__ import annotations

from differential.scenarios.script import Script, keys, scenario


@scenario("arc", 3)
def a_touch_moves_ready_chunks_to_t2_and_keeps_pending_ones_in_t1(s: Script) -> None:
    r = s.request()
    s.store(r, "a b")
    s.start_store(r, "c")
    s.driver.touch(keys("c b"))
    s.has("a c", "b")
    s.driver.touch(keys("a b"))
    s.has("c", "b a")


@scenario("arc", 2)
def a_ghost_twice_in_a_touch_moves_the_target_twice(s: Script) -> None:
    r = s.request()
    s.store(r, "a b")
    s.store(r, "c", evicts="a")
    s.driver.touch(keys("a a"))
    s.has("b c", b1="a", target=2.0)


@scenario("arc", 3)
def a_chunk_that_another_request_reuses_moves_to_t2_once(s: Script) -> None:
    s.store(s.request(), "a b c")
    r = s.request()
    s.load(r, "a b")
    s.load(r, "a b")
    s.has("a b c")
    s.driver.finish(r)
    s.has("c", "b a")


@scenario("arc", 3)
def an_offer_of_a_ready_chunk_is_a_reuse(s: Script) -> None:
    s.store(s.request(), "a")
    r = s.request()
    s.offer(r, "a b", stored="b")
    s.driver.finish(r)
    s.has("b", "a")


@scenario("arc", 3)
def reading_what_the_request_itself_stored_is_no_reuse(s: Script) -> None:
    r = s.request()
    s.store(r, "a b")
    s.load(r, "a")
    s.driver.finish(r)
    s.has("b a")


@scenario("arc", 1)
def a_key_reused_and_then_stored_by_the_same_request_was_reused(s: Script) -> None:
    r, other = s.request(), s.request()
    s.store(other, "a")
    s.load(r, "a")
    s.store(other, "b", evicts="a")
    s.store(r, "a", evicts="b")
    s.driver.finish(r)
    s.has("", "a", b1="b", target=1.0)


@scenario("arc", 1)
def a_reused_chunk_moves_to_t2_though_it_is_pending_again(s: Script) -> None:
    r, other = s.request(), s.request()
    s.store(other, "a")
    s.load(r, "a")
    s.store(other, "b", evicts="a")
    job = s.start_store(s.request(), "a", evicts="b")
    s.driver.finish(r)
    s.has("", "a", b1="b", target=1.0)
    s.driver.complete_store(job, keys("a"), False)
    s.has("", b1="b", target=1.0)


@scenario("arc", 2)
def a_b1_ghost_raises_the_target_and_returns_to_t1(s: Script) -> None:
    r = s.request()
    s.store(r, "a b")
    s.store(r, "c d", evicts="a b")
    s.has("c d", b1="a b")
    # The hit moves `a` to the MRU end, so that trimming B1 to the capacity drops `b`, before `a`
    # leaves B1 for T1.
    s.store(s.request(), "a", evicts="c")
    s.has("d a", b1="c", target=1.0)


@scenario("arc", 3)
def the_target_moves_by_the_ratio_of_the_ghost_lists(s: Script) -> None:
    fill = s.request()
    s.store(fill, "a b c")
    reader = s.request()
    s.load(reader, "a b c")
    s.driver.finish(reader)
    s.has("", "c b a")
    s.store(fill, "d", evicts="c")
    s.store(fill, "e", evicts="d")
    s.has("e", "b a", b1="d", b2="c")
    s.store(fill, "f", evicts="e")
    s.store(fill, "g", evicts="f")
    s.has("g", "b a", b1="d e f", b2="c")
    s.driver.touch(keys("d"))
    s.has("g", "b a", b1="e f d", b2="c", target=1.0)
    s.driver.touch(keys("d"))
    s.has("g", "b a", b1="e f d", b2="c", target=2.0)
    # T1 is below the target, so T2 gives the victim.
    s.store(fill, "h", evicts="b")
    s.has("g h", "a", b1="e f d", b2="c b", target=2.0)
    s.driver.touch(keys("c"))
    s.has("g h", "a", b1="e f d", b2="b c", target=0.5)


@scenario("arc", 3)
def a_fraction_of_the_target_does_not_count(s: Script) -> None:
    the_target_moves_by_the_ratio_of_the_ghost_lists(s)
    s.driver.touch(keys("e"))
    s.has("g h", "a", b1="f d e", b2="b c", target=1.5)
    # 1.5 counts as 1, so T1 gives g and then, at its size of 1, h.
    s.store(s.request(), "x y", evicts="g h")


@scenario("arc", 2)
def the_target_stays_within_zero_and_the_capacity(s: Script) -> None:
    r = s.request()
    s.store(r, "a b")
    s.store(r, "c d", evicts="a b")
    s.driver.touch(keys("a b a b a"))
    s.has("c d", b1="b a", target=2.0)


@scenario("arc", 2)
def below_the_target_t1_gives_victims_once_t2_has_none(s: Script) -> None:
    r = s.request()
    s.store(r, "a b")
    s.store(r, "c", evicts="a")
    s.driver.touch(keys("a a a"))
    s.has("b c", b1="a", target=2.0)
    s.start_load(s.request(), "c")
    s.store(s.request(), "d", evicts="b")
    s.start_store(r, "e f", evicts=None)
    s.has("c d", b1="a b", target=2.0)


@scenario("arc", 3)
def t2_is_spared_as_long_as_t1_has_its_target(s: Script) -> None:
    s.store(s.request(), "a b c")
    r = s.request()
    s.load(r, "a")
    s.driver.finish(r)
    s.has("b c", "a")
    s.store(s.request(), "d e f", evicts="b c a")
    s.has("d e f", b1="b c", b2="a")


@scenario("arc", 2)
def ghost_lists_hold_a_capacity_each(s: Script) -> None:
    r = s.request()
    s.store(r, "a b")
    s.store(r, "c d", evicts="a b")
    s.store(r, "e f", evicts="c d")
    s.has("e f", b1="c d")


@scenario("arc", 2)
def a_request_moves_the_target_once_per_key_however_often_it_offers(s: Script) -> None:
    r = s.request()
    s.store(r, "a b")
    s.store(r, "c", evicts="a")
    job = s.start_load(r, "b c")
    late = s.request()
    s.start_store(late, "a", evicts=None)
    s.has("b c", b1="a", target=1.0)
    s.start_store(late, "a", evicts=None)
    s.has("b c", b1="a", target=1.0)
    s.start_store(s.request(), "a", evicts=None)
    s.has("b c", b1="a", target=2.0)
    s.driver.complete_load(job, keys("b c"))


@scenario("arc", 1, store_threshold=2, max_tracker_size=1)
def a_ghost_below_the_threshold_is_no_store_miss(s: Script) -> None:
    r = s.request()
    s.offer(r, "a", stored="")
    s.offer(r, "a", stored="a")
    s.offer(r, "b", stored="")
    s.store(r, "b", evicts="a")
    late = s.request()
    s.offer(late, "a", stored="")
    s.has("b", b1="a")
    s.store(late, "a", evicts="b")
    s.has("a", b1="b", target=1.0)


@scenario("arc", 2)
def a_reset_forgets_ghosts_and_target(s: Script) -> None:
    r = s.request()
    s.store(r, "a b")
    s.store(r, "c", evicts="a")
    s.driver.touch(keys("a"))
    s.driver.reset("fenced")
    s.has("")
