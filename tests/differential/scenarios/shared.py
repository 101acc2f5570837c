"""What does not depend on the policy, and LRU."""

from __future__ import annotations

from differential.scenarios.script import Script, keys, scenario

# Slots, pins and stores: alike for both policies.


@scenario("lru arc", 3)
def pinned_chunks_keep_their_place(s: Script) -> None:
    r = s.request()
    s.store(r, "a b c")
    job = s.start_load(s.request(), "a")
    s.store(r, "d", evicts="b")
    s.driver.complete_load(job, keys("a"))
    s.store(r, "e", evicts="a")


@scenario("lru arc", 2)
def pending_chunks_are_not_evicted(s: Script) -> None:
    r = s.request()
    job = s.start_store(r, "a")
    s.store(r, "b")
    s.store(r, "c", evicts="b")
    s.start_store(r, "d e", evicts=None)
    s.driver.complete_store(job, keys("a"), True)
    s.store(r, "d e", evicts="a c")


@scenario("lru arc", 3)
def a_store_spares_the_keys_of_its_own_call(s: Script) -> None:
    r = s.request()
    s.store(r, "a b c")
    s.jobs += 1
    assert s.driver.prepare_store(r, s.jobs, keys("a d")) == (keys("d"), keys("b"))


@scenario("lru arc", 2)
def a_store_that_could_only_evict_its_own_keys_is_declined(s: Script) -> None:
    r = s.request()
    s.store(r, "a b")
    s.start_store(r, "a b c", evicts=None)
    s.events("stored a b")


@scenario("lru arc", 10)
def a_store_may_replace_the_whole_tier(s: Script) -> None:
    s.store(s.request(), "a b c d e f g h i j")
    s.store(s.request(), "k l m n o p q r s t", evicts="a b c d e f g h i j")
    s.store(s.request(), "u v w x y z A B C D", evicts="k l m n o p q r s t")


@scenario("lru arc", 2)
def a_declined_store_changes_nothing(s: Script) -> None:
    r = s.request()
    s.store(r, "a b")
    s.start_store(r, "c d e", evicts=None)
    s.has("a b")
    s.events("stored a b")


@scenario("lru arc", 1)
def a_store_of_nothing_fits_a_full_tier(s: Script) -> None:
    r = s.request()
    s.start_store(r, "a")
    s.start_store(r, "")
    s.offer(r, "a", stored="")


@scenario("lru arc", 2)
def a_failed_store_leaves_neither_chunk_nor_ghost(s: Script) -> None:
    r = s.request()
    job = s.start_store(r, "a b")
    s.driver.complete_store(job, keys("a b"), False)
    s.has("")
    s.events()
    s.store(r, "c d")


@scenario("lru arc", 2)
def completing_a_store_twice_leaves_ready_chunks_alone(s: Script) -> None:
    r = s.request()
    job = s.start_store(r, "a b")
    s.driver.complete_store(job, keys("a b"), True)
    s.driver.complete_store(job, keys("a b"), False)
    assert s.driver.lookup(keys("a b")) == [1, 1]
    s.events("stored a b")


@scenario("lru arc", 2)
def victims_are_told_before_the_store_that_needs_their_slots(s: Script) -> None:
    r = s.request()
    s.store(r, "a b")
    s.store(r, "c d", evicts="a b")
    s.events("stored a b", "removed a b", "stored c d")


@scenario("lru arc", 2)
def a_key_twice_in_a_load_is_pinned_twice(s: Script) -> None:
    r = s.request()
    s.store(r, "a b")
    twice, once = s.start_load(r, "a a"), s.start_load(r, "a")
    s.driver.complete_load(twice, keys("a a"))
    s.store(r, "c", evicts="b")
    s.driver.complete_load(once, keys("a"))
    s.store(r, "d", evicts="a")


@scenario("lru arc", 2)
def a_reset_forgets_all_and_the_request_goes_on_with_an_empty_record(s: Script) -> None:
    r, other = s.request(), s.request()
    s.store(other, "a")
    s.load(r, "a")
    s.driver.reset("fenced")
    s.has("")
    s.events("stored a", "cleared")
    s.store(other, "a b")
    s.driver.finish(r)
    s.has("a b")


# Request-scoped access.


@scenario("lru", 4)
def a_request_is_applied_tail_first_at_its_end(s: Script) -> None:
    r = s.request()
    s.store(r, "a b")
    s.store(r, "c d")
    s.has("a b c d")
    s.driver.finish(r)
    s.has("d c b a")


@scenario("lru", 4)
def positions_order_keys_that_were_stored_out_of_order(s: Script) -> None:
    r = s.request("a=1 b=2 c=3 d=4")
    s.store(r, "c d")
    s.store(r, "b a")
    s.driver.finish(r)
    s.has("d c b a")


@scenario("lru", 4)
def positions_told_while_a_request_runs_count_at_its_end(s: Script) -> None:
    r = s.request("a=1 b=2")
    s.store(r, "d c b a")
    s.driver.extend(r, keys("c d"), (3, 4))
    s.driver.finish(r)
    s.has("d c b a")


@scenario("lru", 4)
def one_key_without_a_position_keeps_the_order_of_use(s: Script) -> None:
    r = s.request("a=1 b=2 d=4")
    s.store(r, "d c b a")
    s.driver.finish(r)
    s.has("a b c d")


@scenario("lru", 6)
def groups_are_merged_by_position_the_lower_group_first(s: Script) -> None:
    r = s.request("a=1 b=2 c=3 a.1=1 b.1=2 c.1=3")
    s.store(r, "a.1 b.1 c.1 a b c")
    s.driver.finish(r)
    s.has("c.1 c b.1 b a.1 a")


@scenario("lru", 6)
def a_group_without_positions_is_not_merged(s: Script) -> None:
    r = s.request("a=1 b=2 c=3")
    s.store(r, "c.1 b.1 a.1 c b a")
    s.driver.finish(r)
    s.has("a.1 b.1 c.1 c b a")


@scenario("lru", 2)
def keys_of_a_declined_store_were_seen(s: Script) -> None:
    r, other = s.request(), s.request()
    job = s.start_store(other, "a b")
    s.start_store(r, "c", evicts=None)
    s.driver.complete_store(job, keys("a b"), True)
    s.store(other, "c", evicts="a")
    s.store(other, "d", evicts="b")
    s.has("c d")
    s.driver.finish(r)
    s.has("d c")


@scenario("lru arc", 2)
def pending_chunks_of_others_were_not_seen(s: Script) -> None:
    r, other = s.request(), s.request()
    s.start_store(other, "a")
    s.start_store(other, "b")
    s.offer(r, "a", stored="")
    s.driver.finish(r)
    s.has("a b")


@scenario("lru arc", 2)
def a_request_that_is_forgotten_applies_nothing(s: Script) -> None:
    r, reader = s.request(), s.request()
    s.store(r, "a b")
    s.load(reader, "a")
    s.driver.forget(reader)
    s.driver.forget(r)
    s.has("a b")


# Admission.


@scenario("lru arc", 4, store_threshold=2)
def a_key_is_stored_when_it_was_offered_often_enough(s: Script) -> None:
    r = s.request()
    s.offer(r, "a b", stored="")
    s.offer(r, "b c", stored="b")
    s.offer(r, "a b c", stored="a c")


@scenario("lru arc", 4, store_threshold=2, max_tracker_size=2)
def a_full_offer_table_drops_the_oldest_and_never_the_keys_of_the_call(s: Script) -> None:
    r = s.request()
    s.offer(r, "a b", stored="")
    s.offer(r, "c d e", stored="")
    s.offer(r, "a", stored="")
    s.offer(r, "d e", stored="d")


@scenario("lru arc", 4, store_threshold=4)
def a_key_that_is_known_is_offered_as_often_as_the_call_names_it(s: Script) -> None:
    r = s.request()
    s.offer(r, "a a", stored="")
    s.offer(r, "a a", stored="")
    s.offer(r, "a", stored="a")


@scenario("lru arc", 4, store_threshold=2)
def offers_survive_a_reset(s: Script) -> None:
    s.offer(s.request(), "a", stored="")
    s.driver.reset("fenced")
    s.offer(s.request(), "a", stored="a")


# Touches by key.


@scenario("lru", 3)
def a_touch_applies_its_last_key_first(s: Script) -> None:
    s.store(s.request(), "a b c")
    s.driver.touch(keys("a x b"))
    s.has("c b a")
