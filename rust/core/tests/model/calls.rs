//! The steps that need more than one line.

use kvferry::{
    AccessError, KeyError, LoadError, LookupResult, Manager, ResetMode, StoreError, StoreOutcome,
    StoreRejected, TryPin, Unpinned,
};

use crate::common::{Chunks, owned};
use crate::operations::KEY_BYTES;
use crate::reference::{Id, Key, LoadFault, MAX_PINS, Phase, StoreModel};
use crate::world::{World, counts, take};

/// A fault of a load as the model names it.
pub(crate) fn fault(error: LoadError) -> LoadFault {
    match error {
        LoadError::NotResident { index } => LoadFault::NotResident(index),
        LoadError::NotReady { index } => LoadFault::NotReady(index),
        LoadError::NotPinned { index } => LoadFault::NotPinned(index),
        LoadError::TooManyPins { index } => LoadFault::TooManyPins(index),
        other => panic!("{other}"),
    }
}

impl World {
    pub(crate) fn set_positions(&mut self, request: u8, names: &[u8], positions: &[u8]) {
        let keys = Chunks(self.keys(names));
        let Some((mut access, mut model)) = take(&mut self.requests, request) else {
            return;
        };
        // Few values, so that some are equal; now and then the one that means none.
        let position = |byte: &u8| {
            if *byte == 255 {
                u32::MAX
            } else {
                u32::from(*byte % 16)
            }
        };
        let positions: Vec<u32> = positions.iter().map(position).collect();
        let done = keys.with(|keys| access.set_positions(keys, &positions));
        if positions.len() == keys.len() {
            model.set_positions(&keys.0, &positions);
            assert_eq!(done, Ok(()));
        } else {
            let (positions, keys) = (positions.len(), keys.len());
            assert_eq!(done, Err(KeyError::Positions { positions, keys }));
            // Most lengths differ: tell those that there are all the same.
            let n = positions.min(keys);
            let keys = Chunks(self.keys(&names[..n]));
            let positions: Vec<u32> = (0..16).map(|i| i * 7 % 16).cycle().take(n).collect();
            model.set_positions(&keys.0, &positions);
            let done = keys.with(|keys| access.set_positions(keys, &positions));
            assert_eq!(done, Ok(()));
        }
        self.requests.push((access, model));
    }

    pub(crate) fn prepare_store(&mut self, request: Option<u8>, names: &[u8]) {
        let keys = Chunks(self.keys(names));
        let mut request = request.and_then(|i| take(&mut self.requests, i));
        let epoch = self.model.epoch;
        let stale = request.as_ref().is_some_and(|r| r.1.is_stale(epoch));
        self.meet("a request goes on after a reset", usize::from(stale));
        let held = self
            .model
            .chunks
            .iter()
            .filter(|chunk| chunk.reader_pins > 0)
            .count();
        let lists = [self.model.t1.clone(), self.model.t2.clone()];
        let expected = self
            .model
            .prepare_store(&keys.0, request.as_mut().map(|r| &mut r.1));
        let access = request.as_mut().map(|r| &mut r.0);
        let outcome = keys.with(|keys| self.manager().prepare_store(keys, access));
        match (outcome.expect("valid keys"), expected) {
            (StoreOutcome::Rejected(why), StoreModel::Full) => {
                assert_eq!(why, StoreRejected::Full);
                self.meet("a store did not fit", 1);
            }
            (
                StoreOutcome::Stored(output),
                StoreModel::Stored {
                    indices,
                    evicted,
                    ids,
                },
            ) => {
                assert_eq!(output.indices, indices);
                assert_eq!(owned(&output.evicted), evicted);
                self.model.place(&ids, output.ticket.slots());
                let gone = |id: &&Id| self.model.chunk(**id).is_none();
                let left = lists.map(|list| list.iter().filter(gone).count());
                let mixed = left.iter().all(|&left| left > 0);
                self.meet("victims of T1 and of T2 in one call", usize::from(mixed));
                if !evicted.is_empty() {
                    self.meet("a chunk that a reader holds is passed over", held);
                }
                self.stores.push((output.ticket, ids));
            }
            (outcome, expected) => panic!("{outcome:?}, expected {expected:?}"),
        }
        self.requests.extend(request);
    }

    pub(crate) fn prepare_load(&mut self, request: Option<u8>, keys: Vec<Key>) {
        let keys = Chunks(keys);
        let mut request = request.and_then(|i| take(&mut self.requests, i));
        let expected = self
            .model
            .prepare_load(&keys.0, request.as_mut().map(|r| &mut r.1));
        let access = request.as_mut().map(|r| &mut r.0);
        let load = keys.with(|keys| self.manager().prepare_load(keys, access));
        let too_many = matches!(expected, Err(LoadFault::TooManyPins(_)));
        self.meet("a load fails for too many pins", usize::from(too_many));
        match (load, expected) {
            (Ok(ticket), Ok(ids)) => {
                let slot = |id| self.model.chunk(id).expect("it is pinned").slot;
                let slots: Vec<u32> = ids.iter().map(|&id| slot(id)).collect();
                assert_eq!(ticket.slots(), slots);
                self.loads.push((ticket, ids));
            }
            (load, expected) => {
                assert_eq!(load.map(|_| ()).map_err(fault), expected.map(|_| ()));
            }
        }
        self.requests.extend(request);
    }

    pub(crate) fn pin_too_often(&mut self, name: u8) {
        let key = self.keys(&[name]).remove(0);
        let Some(chunk) = self.model.resident(&key) else {
            return;
        };
        if chunk.phase == Phase::Ready {
            let left = MAX_PINS - chunk.owner_pins - chunk.reader_pins;
            self.prepare_load(None, vec![key; left + 1]);
        }
    }

    pub(crate) fn reader_pin(&mut self, key: &Key) {
        let answer = self.reader().try_pin(key).expect("a valid key");
        let seen = self.model.resident(key).map(|c| (c.id, c.slot, c.phase));
        match (answer, seen) {
            (TryPin::Miss, None) | (TryPin::Pending, Some((_, _, Phase::Pending))) => {}
            (TryPin::Busy, Some((id, _, Phase::Ready))) => {
                assert_eq!(self.model.try_pin(id), None);
            }
            (TryPin::Pinned(pin), Some((id, slot, Phase::Ready))) => {
                assert_eq!(pin.slot(), slot);
                assert_eq!(self.model.try_pin(id), Some(()));
                self.pins.push((pin, id));
            }
            (answer, seen) => panic!("{answer:?}, expected {seen:?}"),
        }
    }

    pub(crate) fn take_events(&mut self) {
        let taken = self.manager().take_events();
        let events: Vec<_> = taken
            .events
            .iter()
            .map(|event| (event.kind, owned(&event.keys)))
            .collect();
        let (expected, lost) = self.model.take_events();
        assert_eq!((events, taken.lost), (expected, lost));
    }

    /// The engine is gone, its storage is not: what was in flight belongs to nobody any more.
    pub(crate) fn rebuild(&mut self) {
        self.reader = None;
        let manager = self.manager.take().expect("there is an engine");
        let storage = manager.into_storage().expect("no reader is left");
        let manager = Manager::rebuild(&self.config, storage).expect("the same configuration");
        self.reader = Some(manager.reader());
        self.manager = Some(manager);
        self.model.rebuild();
        // A few of each are enough to try them on the next engine.
        let old = &mut self.old;
        old.requests.extend(self.requests.drain(..).map(|it| it.0));
        old.stores.extend(self.stores.drain(..).map(|it| it.0));
        old.loads.extend(self.loads.drain(..).map(|it| it.0));
        old.pins.extend(self.pins.drain(..).map(|it| it.0).take(3));
    }

    /// What another engine gave is refused or late, and changes nothing else.
    pub(crate) fn foreign(&mut self, what: u8) {
        let keys = Chunks(self.keys(&[what, what / 2]));
        match what % 5 {
            0 => {
                if let Some(ticket) = self.old.stores.pop() {
                    let n = ticket.slots().len();
                    assert_eq!(counts(self.manager().cancel_store(&ticket)), (0, n));
                    assert_eq!(counts(self.manager().complete_store(ticket, true)), (0, n));
                    self.model.count("late", n);
                }
            }
            1 => {
                if let Some(ticket) = self.old.loads.pop() {
                    let n = ticket.slots().len();
                    assert_eq!(counts(self.manager().complete_load(ticket)), (0, n));
                    self.model.count("late", n);
                }
            }
            2 => {
                if let Some(pin) = self.old.pins.pop() {
                    assert_eq!(self.reader().unpin(pin), Unpinned::Stale);
                    self.model.count("unpins_stale", 1);
                }
            }
            3 => {
                if let Some(mut access) = self.old.requests.pop() {
                    let store =
                        keys.with(|keys| self.manager().prepare_store(keys, Some(&mut access)));
                    assert_eq!(store.map(|_| ()), Err(StoreError::Access(AccessError)));
                    let load =
                        keys.with(|keys| self.manager().prepare_load(keys, Some(&mut access)));
                    assert_eq!(load.map(|_| ()), Err(LoadError::Access(AccessError)));
                    let finish = self.manager().finish_request(access, None);
                    assert_eq!(finish, Err(AccessError));
                }
            }
            _ => {
                let late = counts(self.manager().count_late(usize::from(what)));
                assert_eq!(late, (0, usize::from(what)));
                self.model.count("late", usize::from(what));
            }
        }
    }

    /// A key that no engine can hold, at some place of a call: an error that names the place.
    pub(crate) fn bad_key(&mut self, verb: u8, names: &[u8], at: u8, long: bool) {
        let mut keys = self.keys(names);
        let index = usize::from(at) % (keys.len() + 1);
        let len = if long { KEY_BYTES + 1 + names.len() } else { 0 };
        let bad = vec![3; len];
        let error = |index| {
            if long {
                let key_bytes = KEY_BYTES;
                KeyError::TooLong {
                    index,
                    len,
                    key_bytes,
                }
            } else {
                KeyError::Empty { index }
            }
        };
        keys.insert(index, bad.clone());
        let (keys, expected) = (Chunks(keys), error(index));
        let got = match verb % 13 {
            0 => keys.with(|keys| self.manager().lookup_prefix(keys).map(|_| ())),
            1 => {
                let mut out = vec![LookupResult::Hit];
                keys.with(|keys| self.manager().lookup_each(keys, &mut out))
            }
            2 => keys.with(|keys| self.manager().touch(keys)),
            3 => keys.with(|keys| self.manager().drop_keys(keys).map(|_| ())),
            4 => keys.with(|keys| self.manager().complete_store_keys(keys, true).map(|_| ())),
            5 => keys.with(|keys| self.reader().touch(keys)),
            6 => keys.with(|keys| self.reader().lookup_prefix(keys).map(|_| ())),
            7 => {
                let mut out = Vec::new();
                keys.with(|keys| self.reader().lookup_each(keys, &mut out))
            }
            8 => {
                let mut request = take(&mut self.requests, at);
                let access = request.as_mut().map(|r| &mut r.0);
                let error = keys.with(|keys| self.manager().prepare_store(keys, access));
                self.requests.extend(request);
                let Err(StoreError::Key(error)) = error else {
                    panic!("{error:?}");
                };
                Err(error)
            }
            9 => {
                let mut request = take(&mut self.requests, at);
                let access = request.as_mut().map(|r| &mut r.0);
                let error = keys.with(|keys| self.manager().prepare_load(keys, access));
                self.requests.extend(request);
                let Err(LoadError::Key(error)) = error else {
                    panic!("{error:?}");
                };
                Err(error)
            }
            10 => {
                let error = keys.with(|keys| self.manager().complete_load_keys(keys));
                assert_eq!(error, Err(LoadError::Key(expected.clone())));
                Err(expected.clone())
            }
            11 => {
                let Some(mut request) = take(&mut self.requests, at) else {
                    return;
                };
                let positions = vec![0; keys.len()];
                let error = keys.with(|keys| request.0.set_positions(keys, &positions));
                self.requests.push(request);
                error
            }
            _ => {
                assert_eq!(self.manager().lookup(&bad), Err(error(0)));
                assert_eq!(self.reader().lookup(&bad), Err(error(0)));
                let pin = self.reader().try_pin(&bad);
                assert_eq!(pin, Err(error(0)));
                Err(expected.clone())
            }
        };
        assert_eq!(got, Err(expected));
    }

    /// Ends everything that is in flight: then nothing is held, and no slot is lost.
    pub(crate) fn wind_down(&mut self) {
        while let Some((ticket, ids)) = self.stores.pop() {
            let expected = self.model.complete_store(&ids, true);
            assert_eq!(
                counts(self.manager().complete_store(ticket, true)),
                expected
            );
        }
        while let Some((ticket, ids)) = self.loads.pop() {
            let expected = self.model.complete_load(&ids);
            assert_eq!(counts(self.manager().complete_load(ticket)), expected);
        }
        while let Some((pin, id)) = self.pins.pop() {
            self.model.unpin(id);
            let _ = self.reader().unpin(pin);
        }
        while let Some((access, model)) = self.requests.pop() {
            self.model.finish_request(model);
            assert_eq!(self.manager().finish_request(access, None), Ok(()));
        }
        self.model.touch(&[]);
        let nothing = Chunks(Vec::new());
        assert_eq!(nothing.with(|keys| self.manager().touch(keys)), Ok(()));
        self.compare();
        let stats = self.manager().stats();
        assert_eq!((stats.pending, stats.pinned, stats.draining), (0, 0, 0));
        assert_eq!(stats.free + stats.ready, stats.capacity);
        assert_eq!(stats.evictable, stats.ready);
        self.model.reset(ResetMode::Drain);
        assert_eq!(self.manager().reset_cache(ResetMode::Drain), 0);
        assert_eq!(self.manager().stats().free, stats.capacity);
        self.compare();
    }
}
