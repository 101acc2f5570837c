//! Faults on purpose: a share of jobs that fails, at a moment that the seed chooses.

use std::sync::atomic::{AtomicU64, Ordering};

/// Makes a share of jobs fail, each at a moment of its own, so that whoever uses the backend can be
/// tried against it. A job that fails has written none, some or all of its bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FaultInjection {
    /// The share of jobs that fails, from 0 to 1.
    pub rate: f64,
    /// Which ones, and when: the same seed chooses the same jobs, counted in the order in which
    /// they are enqueued.
    pub seed: u64,
    /// The only moment at which they fail; without it, any.
    pub only: Option<FaultMoment>,
}

/// When a job fails that is made to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultMoment {
    /// It is not started.
    Refused,
    /// Its start fails, with its copies under way.
    Started,
    /// No byte is copied.
    First,
    /// The first half of its bytes is copied.
    Midway,
    /// All bytes are copied.
    Last,
    /// It is said to have failed while its copies may still run.
    Running,
    /// A copy panics.
    Panic,
}

impl FaultMoment {
    /// Every moment.
    pub const ALL: [Self; 7] = [
        Self::Refused,
        Self::Started,
        Self::First,
        Self::Midway,
        Self::Last,
        Self::Running,
        Self::Panic,
    ];
}

/// Chooses among the jobs of one backend.
#[derive(Debug)]
pub(crate) struct Faults {
    injection: Option<FaultInjection>,
    jobs: AtomicU64,
}

impl Faults {
    pub(crate) fn new(injection: Option<FaultInjection>) -> Self {
        Self {
            injection,
            jobs: AtomicU64::new(0),
        }
    }

    /// Whether the next job fails, and when.
    pub(crate) fn next(&self) -> Option<FaultMoment> {
        let injection = self.injection?;
        // Relaxed: a number for each job, which publishes nothing.
        let job = self.jobs.fetch_add(1, Ordering::Relaxed);
        let drawn = mixed(injection.seed ^ mixed(job));
        // 53 bits: all that a double tells apart between 0 and 1.
        let share = (drawn >> 11) as f64 / (1u64 << 53) as f64;
        if share >= injection.rate {
            return None;
        }
        let any = mixed(drawn) % FaultMoment::ALL.len() as u64;
        let any = FaultMoment::ALL[usize::try_from(any).expect("a moment's number is small")];
        Some(injection.only.unwrap_or(any))
    }
}

/// The finalizer of SplitMix64: each bit of the input moves about half of the output's.
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
