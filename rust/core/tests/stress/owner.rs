//! The owner: every verb, at random.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};
use std::thread;

use kvferry::{Keys, LoadTicket, Manager, ResetMode, Stats, StoreTicket};

use crate::common::Numbers;
use crate::worker::Job;
use crate::world::{Sabotage, World};

/// The most transfers of stores, and of loads, under way.
const JOBS: usize = 8;
/// The longest run, as a multiple of the planned steps, until it has seen what it must.
const PATIENCE: u64 = 50;

pub(crate) struct Owner<'a> {
    manager: Manager,
    world: &'a World,
    numbers: Numbers,
    jobs: Option<Sender<Job>>,
    done: Receiver<u64>,
    /// Stores that the worker transfers.
    stores: HashMap<u64, StoreTicket>,
    loads: VecDeque<(LoadTicket, Vec<usize>)>,
    held: Option<LoadTicket>,
    /// Time and number of the next job.
    now: u64,
}

impl<'a> Owner<'a> {
    pub(crate) fn new(
        manager: Manager,
        world: &'a World,
        jobs: Sender<Job>,
        done: Receiver<u64>,
    ) -> Self {
        Self {
            manager,
            world,
            numbers: Numbers(99),
            jobs: Some(jobs),
            done,
            stores: HashMap::new(),
            loads: VecDeque::new(),
            held: None,
            now: 0,
        }
    }

    /// Works until the plan is done and has seen what it must; returns the steps.
    pub(crate) fn run(&mut self) -> u64 {
        let plan = self.world.plan;
        self.hold();
        for step in 1..plan.steps * PATIENCE {
            if self.world.stopped() || step > plan.steps && self.has_seen_enough() {
                return step;
            }
            self.step();
        }
        self.world.violated("the run did not see enough".to_owned());
        plan.steps * PATIENCE
    }

    fn has_seen_enough(&self) -> bool {
        let plan = self.world.plan;
        // Relaxed: counters.
        self.world.pinned.load(Ordering::Relaxed) >= plan.steps / 100
            && (!plan.resets || self.world.stale.load(Ordering::Relaxed) > 0)
            && self.manager.debug_moves() >= plan.moves
    }

    pub(crate) fn hang_up(&mut self) {
        self.jobs = None;
    }

    fn step(&mut self) {
        self.now += 1;
        let some = self.some_keys();
        match self.numbers.below(100) {
            0..45 => self.offer(&some),
            45..70 => self.complete(),
            70..80 => self.load(&some),
            80..86 => self.end_load(),
            86..90 => self.touch(&some),
            90..93 => self.drop(&some),
            93..95 => self.cancel(),
            95..97 => {
                self.manager.expire_pending(self.now);
            }
            97..99 => self.request(&some),
            _ => self.maybe_reset(),
        }
        while self.stores.len() > JOBS {
            self.wait();
        }
        while self.loads.len() > JOBS {
            self.end_load();
        }
    }

    /// Keys that follow each other, as those of a prefix do.
    fn some_keys(&mut self) -> Vec<usize> {
        let plan = self.world.plan;
        let first = self.numbers.below(plan.keys);
        let len = 1 + self.numbers.below(plan.call);
        (first..plan.keys).take(len).collect()
    }

    fn with<R>(&mut self, keys: &[usize], f: impl FnOnce(&mut Manager, Keys<'_>) -> R) -> R {
        let slices: Vec<&[u8]> = keys.iter().map(|&k| &*self.world.keys[k]).collect();
        f(&mut self.manager, Keys::slices(&slices))
    }

    fn offer(&mut self, keys: &[usize]) {
        let outcome = self.with(keys, |manager, keys| manager.prepare_store(keys, None));
        self.transfer(keys, outcome.expect("valid keys").stored());
    }

    /// Hands a store to the worker.
    fn transfer(&mut self, keys: &[usize], output: Option<kvferry::StoreOutput>) {
        let Some(output) = output else { return };
        let job = Job {
            id: self.now,
            slots: output.ticket.slots().to_vec(),
            keys: output.indices.iter().map(|&i| keys[i]).collect(),
        };
        self.stores.insert(job.id, output.ticket);
        let jobs = self.jobs.as_ref().expect("open while the run lasts");
        jobs.send(job).expect("the worker waits");
    }

    fn request(&mut self, keys: &[usize]) {
        let mut access = self.manager.begin_request(self.now, 0);
        let outcome = self.with(keys, |manager, keys| {
            manager.prepare_store(keys, Some(&mut access))
        });
        self.transfer(keys, outcome.expect("valid keys").stored());
        let finished = self.manager.finish_request(access, None);
        finished.expect("the engine's own access");
    }

    fn end_store(&mut self, job: u64) {
        let ticket = self.stores.remove(&job).expect("a job ends once");
        let success = self.numbers.below(16) > 0;
        self.manager.complete_store(ticket, success);
    }

    /// Ends what the worker has done.
    fn complete(&mut self) {
        while let Ok(job) = self.done.try_recv() {
            self.end_store(job);
        }
    }

    fn wait(&mut self) {
        let job = self.done.recv().expect("the worker works");
        self.end_store(job);
    }

    fn load(&mut self, keys: &[usize]) {
        if let Ok(ticket) = self.with(keys, |manager, keys| manager.prepare_load(keys, None)) {
            self.loads.push_back((ticket, keys.to_vec()));
        }
    }

    /// Ends the oldest load, whose chunks have to be there still: a reset that drains leaves them.
    fn end_load(&mut self) {
        let Some((ticket, keys)) = self.loads.pop_front() else {
            return;
        };
        let slots = ticket.slots().to_vec();
        let whole = slots
            .iter()
            .zip(&keys)
            .all(|(&slot, &key)| self.world.shadow.holds(slot, key));
        let ended = self.manager.complete_load(ticket);
        if !whole && ended.late == 0 {
            let what = format!("a loaded slot of {slots:?} does not hold its chunk");
            self.world.violated(what);
        }
    }

    fn touch(&mut self, keys: &[usize]) {
        self.with(keys, |manager, keys| manager.touch(keys))
            .expect("valid keys");
    }

    /// Drops keys that are not to be held.
    fn drop(&mut self, keys: &[usize]) {
        if keys[0] >= self.world.plan.held {
            self.with(keys, |manager, keys| manager.drop_keys(keys))
                .expect("valid keys");
        }
    }

    fn cancel(&mut self) {
        if let Some(ticket) = self.stores.values().next() {
            self.manager.cancel_store(ticket);
        }
    }

    fn maybe_reset(&mut self) {
        if !self.world.plan.resets || self.numbers.below(4) > 0 {
            return;
        }
        // Odd: the keys are not held from now on.
        self.world.epoch.fetch_add(1, Ordering::AcqRel);
        if self.numbers.below(2) == 0 {
            self.manager.reset_cache(ResetMode::Drain);
        } else {
            // The contract of a fenced reset: no transfer goes on.
            while !self.stores.is_empty() {
                self.wait();
            }
            let told = u64::from(self.world.sabotage != Sabotage::SilentReset);
            self.world.fenced.fetch_add(told, Ordering::AcqRel);
            self.manager.reset_cache(ResetMode::Fenced);
            self.world.fenced.fetch_add(told, Ordering::AcqRel);
        }
        if let Some(ticket) = self.held.take() {
            self.manager.complete_load(ticket);
        }
        self.hold();
    }

    /// Stores the keys that are to be held, and pins them. Waits for slots that drain.
    fn hold(&mut self) {
        let keys: Vec<usize> = (0..self.world.plan.held).collect();
        loop {
            while !self.stores.is_empty() {
                self.wait();
            }
            let held = self.with(&keys, |manager, keys| manager.prepare_load(keys, None));
            if let Ok(ticket) = held {
                self.held = Some(ticket);
                break;
            }
            if self.world.stopped() {
                return;
            }
            self.now += 1;
            self.offer(&keys);
            thread::yield_now();
        }
        if self.world.sabotage == Sabotage::LetGo
            && let Some(ticket) = self.held.take()
        {
            self.manager.complete_load(ticket);
        }
        self.world.epoch.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends everything, and checks that every slot has come back.
    pub(crate) fn wind_down(mut self) -> Result<(Stats, u64), String> {
        while !self.stores.is_empty() {
            self.wait();
        }
        while !self.loads.is_empty() {
            self.end_load();
        }
        if let Some(ticket) = self.held.take() {
            self.manager.complete_load(ticket);
        }
        // Takes what the readers have left.
        self.touch(&[]);
        self.manager.check_invariants()?;
        let stats = self.manager.stats();
        if (stats.pending, stats.pinned, stats.draining) != (0, 0, 0) {
            return Err(format!("not all slots came back: {stats:?}"));
        }
        let moves = self.manager.debug_moves();
        // Keys that were never there, as many as fit: each slot has to be free or evictable.
        let fresh: Vec<Vec<u8>> = (0..self.world.plan.capacity as u64)
            .map(|n| crate::common::numbered_key(n, 1))
            .collect();
        let fresh: Vec<&[u8]> = fresh.iter().map(Vec::as_slice).collect();
        let outcome = self.manager.prepare_store(Keys::slices(&fresh), None);
        let Some(output) = outcome.expect("valid keys").stored() else {
            return Err(format!(
                "a slot did not come back: {:?}",
                self.manager.stats()
            ));
        };
        self.manager.complete_store(output.ticket, true);
        self.manager.check_invariants()?;
        Ok((stats, moves))
    }
}
