//! One engine beside its model: every step goes through both, and everything that can be seen is
//! compared.

use std::collections::BTreeMap;

use kvferry::{
    Completion, Config, LoadTicket, LookupResult, Manager, Pin, PolicyKind, PrefixHits, Reader,
    RequestAccess, ResetMode, StoreTicket, TryPin, Unpinned,
};

use crate::access::AccessModel;
use crate::calls::fault;
use crate::common::{Chunks, engine};
use crate::operations::{self, Step};
use crate::reference::{Id, Key, MAX_PINS, Model, Phase, Settings};

pub(crate) struct World {
    pub(crate) config: Config,
    universe: Vec<Key>,
    pub(crate) manager: Option<Manager>,
    pub(crate) reader: Option<Reader>,
    pub(crate) model: Model,
    pub(crate) requests: Vec<(RequestAccess, AccessModel)>,
    pub(crate) stores: Vec<(StoreTicket, Vec<Id>)>,
    pub(crate) loads: Vec<(LoadTicket, Vec<Id>)>,
    pub(crate) pins: Vec<(Pin, Id)>,
    /// How often what happened that seldom does.
    pub(crate) met: BTreeMap<&'static str, u32>,
    /// Of engines that are gone.
    pub(crate) old: Remains,
}

#[derive(Default)]
pub(crate) struct Remains {
    pub(crate) requests: Vec<RequestAccess>,
    pub(crate) stores: Vec<StoreTicket>,
    pub(crate) loads: Vec<LoadTicket>,
    pub(crate) pins: Vec<Pin>,
}

/// The element at `i`, whatever `i`; taken out.
pub(crate) fn take<T>(items: &mut Vec<T>, i: u8) -> Option<T> {
    (!items.is_empty()).then(|| items.remove(usize::from(i) % items.len()))
}

pub(crate) fn counts(done: Completion) -> (usize, usize) {
    (done.applied, done.late)
}

impl World {
    pub(crate) fn new(settings: &Settings, hashing: Option<u64>) -> Self {
        let config = operations::config(settings, hashing);
        let manager = engine(config.clone());
        let mut world = Self {
            config,
            universe: operations::universe(settings.capacity),
            reader: Some(manager.reader()),
            manager: Some(manager),
            model: Model::new(settings.clone()),
            requests: Vec::new(),
            stores: Vec::new(),
            loads: Vec::new(),
            pins: Vec::new(),
            met: BTreeMap::new(),
            old: Remains::default(),
        };
        world.remains_of_another();
        world
    }

    pub(crate) fn manager(&mut self) -> &mut Manager {
        self.manager.as_mut().expect("there is an engine")
    }

    pub(crate) fn reader(&self) -> &Reader {
        self.reader.as_ref().expect("there is an engine")
    }

    pub(crate) fn keys(&self, names: &[u8]) -> Vec<Key> {
        let n = self.universe.len();
        let key = |name: &u8| self.universe[usize::from(*name) % n].clone();
        names.iter().map(key).collect()
    }

    /// An access, tickets and a pin of an engine that this one is not.
    fn remains_of_another(&mut self) {
        let mut other = engine(self.config.clone().store_threshold(1));
        let keys = Chunks(vec![self.universe[0].clone()]);
        let mut ticket = || {
            let outcome = keys.with(|keys| other.prepare_store(keys, None));
            let output = outcome.expect("valid").stored().expect("it fits");
            output.ticket
        };
        self.old.stores.push(ticket());
        let done = keys.with(|keys| other.complete_store_keys(keys, false));
        assert_eq!(done.map(counts), Ok((1, 0)));
        let outcome = keys.with(|keys| other.prepare_store(keys, None));
        let output = outcome.expect("valid").stored().expect("it fits");
        other.complete_store(output.ticket, true);
        let load = keys.with(|keys| other.prepare_load(keys, None));
        self.old.loads.push(load.expect("it is ready"));
        self.old.requests.push(other.begin_request(0, 0));
        let TryPin::Pinned(pin) = other.reader().try_pin(&keys.0[0]).expect("valid") else {
            panic!("a ready chunk can be pinned");
        };
        self.old.pins.push(pin);
    }

    pub(crate) fn run(&mut self, step: &Step) {
        match step.clone() {
            Step::Advance(by) => {
                let now = self.model.clock_us + u64::from(by);
                self.model.advance_to(now);
                self.manager().advance_to(now);
                // A clock that goes back is taken as standing still.
                self.manager().advance_to(now / 2);
            }
            Step::BeginRequest { gpu_hit } => {
                let now = self.model.clock_us + 1;
                let access = self.manager().begin_request(now, usize::from(gpu_hit));
                assert_eq!(access.gpu_hit(), usize::from(gpu_hit));
                self.requests.push((access, self.model.begin_request(now)));
            }
            Step::SetPositions {
                request,
                keys,
                positions,
            } => {
                self.set_positions(request, &keys, &positions);
            }
            Step::FinishRequest { request } => {
                if let Some((access, model)) = take(&mut self.requests, request) {
                    self.model.finish_request(model);
                    assert_eq!(self.manager().finish_request(access, Some(7)), Ok(()));
                }
            }
            Step::DropRequest { request } => drop(take(&mut self.requests, request)),
            Step::PrepareStore { request, keys } => self.prepare_store(request, &keys),
            Step::CompleteStore { ticket, success } => {
                if let Some((ticket, ids)) = take(&mut self.stores, ticket) {
                    let expected = self.model.complete_store(&ids, success);
                    assert_eq!(
                        counts(self.manager().complete_store(ticket, success)),
                        expected
                    );
                }
            }
            Step::CompleteStoreKeys { keys, success } => {
                let keys = Chunks(self.keys(&keys));
                let expected = self.model.complete_store_keys(&keys.0, success);
                let done = keys.with(|keys| self.manager().complete_store_keys(keys, success));
                assert_eq!(done.map(counts), Ok(expected));
            }
            Step::CancelStore { ticket } => {
                // The ticket stays: the transfer ends some time.
                if let Some((ticket, ids)) = take(&mut self.stores, ticket) {
                    let expected = self.model.cancel_store(&ids);
                    assert_eq!(counts(self.manager().cancel_store(&ticket)), expected);
                    self.stores.push((ticket, ids));
                }
            }
            Step::ExpirePending { after } => {
                let now = self.model.clock_us + u64::from(after);
                let expected = self.model.expire_pending(now);
                assert_eq!(self.manager().expire_pending(now), expected);
            }
            Step::Touch { keys } => {
                let keys = Chunks(self.keys(&keys));
                self.model.touch(&keys.0);
                assert_eq!(keys.with(|keys| self.manager().touch(keys)), Ok(()));
            }
            Step::DropKeys { keys } => {
                let keys = Chunks(self.keys(&keys));
                let expected = self.model.drop_keys(&keys.0);
                assert_eq!(
                    keys.with(|keys| self.manager().drop_keys(keys)),
                    Ok(expected)
                );
            }
            Step::DropLoaded { ticket } => {
                if let Some((ticket, ids)) = take(&mut self.loads, ticket) {
                    let chunks = ids.iter().filter_map(|&id| self.model.chunk(id));
                    let keys = Chunks(chunks.map(|chunk| chunk.key.clone()).collect());
                    self.loads.push((ticket, ids));
                    let expected = self.model.drop_keys(&keys.0);
                    let dropped = keys.with(|keys| self.manager().drop_keys(keys));
                    assert_eq!(dropped, Ok(expected));
                }
            }
            Step::PrepareLoad {
                request,
                keys,
                found,
            } => {
                let mut keys = self.keys(&keys);
                keys.retain(|key| !found || self.model.is_ready(key));
                self.prepare_load(request, keys);
            }
            Step::PinTooOften { key } => self.pin_too_often(key),
            Step::CompleteLoad { ticket } => {
                if let Some((ticket, ids)) = take(&mut self.loads, ticket) {
                    let before = self.model.t1.len() + self.model.t2.len();
                    let expected = self.model.complete_load(&ids);
                    let left = before - self.model.t1.len() - self.model.t2.len();
                    self.meet("a chunk leaves when its last pin goes", left);
                    assert_eq!(counts(self.manager().complete_load(ticket)), expected);
                }
            }
            Step::CompleteLoadKeys { keys } => {
                let keys = Chunks(self.keys(&keys));
                let expected = self.model.complete_load_keys(&keys.0);
                let done = keys.with(|keys| self.manager().complete_load_keys(keys));
                assert_eq!(done.map_err(fault), expected);
            }
            Step::ReaderPin { key } => {
                let key = self.keys(&[key]).remove(0);
                self.reader_pin(&key);
            }
            Step::ReaderPinsMany { key, left } => {
                let key = self.keys(&[key]).remove(0);
                let Some(chunk) = self.model.resident(&key) else {
                    return;
                };
                let pins = chunk.owner_pins + chunk.reader_pins;
                for _ in pins..MAX_PINS - usize::from(left) {
                    self.reader_pin(&key);
                }
            }
            Step::ReaderUnpin { pin } => {
                if let Some((pin, id)) = take(&mut self.pins, pin) {
                    let expected = self.model.unpin(id);
                    let released = self.reader().unpin(pin) == Unpinned::Released;
                    assert_eq!(released, expected);
                }
            }
            Step::ReaderTouch { keys } => {
                let keys = Chunks(self.keys(&keys));
                self.model.reader_touch(&keys.0);
                assert_eq!(keys.with(|keys| self.reader().touch(keys)), Ok(()));
            }
            Step::TakeEvents => self.take_events(),
            Step::Reset { fenced } => {
                let mode = if fenced {
                    ResetMode::Fenced
                } else {
                    ResetMode::Drain
                };
                let expected = self.model.reset(mode);
                assert_eq!(self.manager().reset_cache(mode), expected);
            }
            Step::Rebuild => self.rebuild(),
            Step::BadKey {
                verb,
                keys,
                at,
                long,
            } => self.bad_key(verb, &keys, at, long),
            Step::Foreign { what } => self.foreign(what),
        }
    }

    pub(crate) fn meet(&mut self, what: &'static str, times: usize) {
        *self.met.entry(what).or_default() += u32::try_from(times).unwrap_or(u32::MAX);
    }

    fn meet_states(&mut self) {
        let (model, capacity) = (&self.model, self.model.settings.capacity);
        let fraction = usize::from(model.target.fract() != 0.0);
        let full = usize::from(model.b1.len() == capacity || model.b2.len() == capacity);
        let draining = model
            .chunks
            .iter()
            .filter(|chunk| !chunk.resident())
            .count();
        self.meet("a target between two numbers", fraction);
        self.meet("a ghost list is full", full);
        self.meet("a slot drains", draining);
    }

    /// Compares everything that can be seen.
    pub(crate) fn compare(&mut self) {
        self.meet_states();
        let (universe, model) = (&self.universe, &self.model);
        let manager = self.manager.as_ref().expect("there is an engine");
        let reader = self.reader.as_ref().expect("there is an engine");
        manager.check_invariants().expect("invariants hold");

        let lists = manager.debug_lists();
        let key = |id: &Id| model.chunk(*id).expect("it is listed").key.clone();
        assert_eq!(lists.t1, model.t1.iter().map(key).collect::<Vec<_>>(), "T1");
        assert_eq!(lists.t2, model.t2.iter().map(key).collect::<Vec<_>>(), "T2");
        let name = |ghost: &Key| manager.debug_fingerprint(ghost);
        assert_eq!(
            lists.b1,
            model.b1.iter().map(name).collect::<Vec<_>>(),
            "B1"
        );
        assert_eq!(
            lists.b2,
            model.b2.iter().map(name).collect::<Vec<_>>(),
            "B2"
        );
        let arc = model.settings.policy == PolicyKind::Arc;
        assert_eq!(manager.target_t1_size(), arc.then_some(model.target));

        let stats = manager.stats();
        assert_eq!(reader.stats(), stats);
        assert_eq!(stats.target_t1_size, arc.then_some(model.target));
        let expected = model.stats();
        for (name, value) in stats.iter() {
            if name == "evictable" {
                let (least, most) = model.evictable();
                assert!(
                    (least..=most).contains(&value),
                    "{least} <= {value} <= {most}"
                );
            } else {
                let expected = expected.get(name).copied().unwrap_or(0);
                assert_eq!(value, expected, "{name}");
            }
        }

        let result = |key: &Key| match model.resident(key).map(|chunk| chunk.phase) {
            None => LookupResult::Miss,
            Some(Phase::Pending) => LookupResult::HitPending,
            Some(_) => LookupResult::Hit,
        };
        let expected: Vec<_> = universe.iter().map(result).collect();
        let all = Chunks(universe.clone());
        let mut found = vec![LookupResult::Hit; 3];
        all.with(|keys| manager.lookup_each(keys, &mut found))
            .expect("valid keys");
        assert_eq!(found, expected);
        all.with(|keys| reader.lookup_each(keys, &mut found))
            .expect("valid keys");
        assert_eq!(found, expected);
        for (key, &expected) in universe.iter().zip(&expected) {
            assert_eq!(manager.lookup(key), Ok(expected));
            let slot = model.resident(key).map(|chunk| chunk.slot);
            assert_eq!(manager.debug_slot(key), slot);
        }
        for start in 0..universe.len() {
            let run = |end: &dyn Fn(LookupResult) -> bool| {
                let rest = expected[start..].iter();
                rest.take_while(|result| !end(**result)).count()
            };
            let hits = PrefixHits {
                ready: run(&|result| result != LookupResult::Hit),
                known: run(&|result| result == LookupResult::Miss),
            };
            let rest = Chunks(universe[start..].to_vec());
            assert_eq!(rest.with(|keys| reader.lookup_prefix(keys)), Ok(hits));
            assert_eq!(rest.with(|keys| manager.lookup_prefix(keys)), Ok(hits));
        }
        for (access, model) in &self.requests {
            assert_eq!(access.seen(), model.seen.len());
        }
    }
}
