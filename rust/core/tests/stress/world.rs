//! One run: its plan, what its threads share, and what came of it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;

use kvferry::{Config, KeyHashing, PolicyKind};

use crate::common::{engine, numbered_key};
use crate::owner::Owner;
use crate::reader::Reading;
use crate::shadow::Shadow;
use crate::worker::work;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) policy: PolicyKind,
    pub(crate) capacity: usize,
    /// How many keys there are. The first of them are held.
    pub(crate) keys: usize,
    /// In how many groups the keys are, each of one hash, where they are not to be spread.
    pub(crate) crowds: Option<usize>,
    /// How many keys the owner holds from one reset to the next.
    pub(crate) held: usize,
    /// The most keys in a call.
    pub(crate) call: usize,
    pub(crate) readers: u64,
    pub(crate) resets: bool,
    /// Steps of the owner. It goes on beyond them until the run has seen what it must.
    pub(crate) steps: u64,
    /// How many entries of the index have to move.
    pub(crate) moves: u64,
}

impl Plan {
    fn key(&self, n: usize) -> Vec<u8> {
        let Some(crowds) = self.crowds else {
            return numbered_key(n as u64, 0);
        };
        // The hash of a key that is taken for uniform is in its ends.
        let end = &numbered_key((n % crowds) as u64, 0)[..8];
        [end, &n.to_le_bytes(), end].concat()
    }

    fn config(&self) -> Config {
        let config = Config::new(self.capacity)
            .policy(self.policy)
            .touch_log_capacity(64)
            .pending_timeout_us(Some(2_000));
        match self.crowds {
            Some(_) => config.hashing(KeyHashing::Uniform),
            None => config,
        }
    }
}

/// What one party does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    None,
    /// The worker writes the chunk of another key.
    OtherBytes,
    /// The worker leaves the end of a chunk out.
    TornBytes,
    /// The worker writes a slot after its store has ended.
    LateTransfer,
    /// The owner lets a key go that the readers take for held.
    LetGo,
    /// The owner tells nobody of a fenced reset.
    SilentReset,
    /// A reader keeps a pin.
    KeptPin,
}

/// What the threads of a run share, beside the engine.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) sabotage: Sabotage,
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) shadow: Shadow,
    /// Even while the keys that are to be held are held.
    pub(crate) epoch: AtomicU64,
    /// Fenced resets, counted before each and again after it.
    pub(crate) fenced: AtomicU64,
    pub(crate) stop: AtomicBool,
    pub(crate) pinned: AtomicU64,
    pub(crate) stale: AtomicU64,
    violation: Mutex<Option<String>>,
}

impl World {
    /// Notes what went wrong, and ends the run.
    pub(crate) fn violated(&self, what: String) {
        let mut violation = self.violation.lock().expect("no thread panics in here");
        violation.get_or_insert(what);
        self.stop.store(true, Ordering::Release);
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// What happened in a run.
#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
pub(crate) struct Tally {
    steps: u64,
    pinned: u64,
    stale: u64,
    fenced: u64,
    moves: u64,
    stats: kvferry::Stats,
}

/// Runs a plan; the error is the first thing that went wrong.
pub(crate) fn run(plan: &Plan, sabotage: Sabotage) -> Result<Tally, String> {
    let world = World {
        plan: *plan,
        sabotage,
        keys: (0..plan.keys).map(|n| plan.key(n)).collect(),
        shadow: Shadow::new(plan.capacity),
        epoch: AtomicU64::new(1),
        fenced: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        pinned: AtomicU64::new(0),
        stale: AtomicU64::new(0),
        violation: Mutex::new(None),
    };
    let manager = engine(plan.config());
    let reader = manager.reader();
    let (jobs, to_do) = mpsc::channel();
    let (finished, done) = mpsc::channel();
    let mut owner = Owner::new(manager, &world, jobs, done);
    let steps = thread::scope(|scope| {
        let world = &world;
        scope.spawn(move || work(world, &to_do, &finished));
        for n in 0..plan.readers {
            let reader = reader.clone();
            scope.spawn(move || Reading::new(reader, world, n).read());
        }
        let steps = owner.run();
        world.stop.store(true, Ordering::Release);
        owner.hang_up();
        steps
    });
    if let Some(violation) = world.violation.lock().expect("no thread panicked").take() {
        return Err(violation);
    }
    let (stats, moves) = owner.wind_down()?;
    Ok(Tally {
        steps,
        pinned: world.pinned.load(Ordering::Relaxed),
        stale: world.stale.load(Ordering::Relaxed),
        fenced: world.fenced.load(Ordering::Relaxed) / 2,
        moves,
        stats,
    })
}
