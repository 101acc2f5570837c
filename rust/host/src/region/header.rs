//! The first bytes of a region's file: who made it, for whom, how far its members have come, and
//! which slots must not be read.
//!
//! 1. All of it is atomics, in a layout of its own version. Every bit pattern is valid: other
//!    processes may write there at any time, rubbish too, and what is read is checked before use.
//! 2. The memory stays mapped as long as the [`Header`] lives, and is as long as its constructor was
//!    told.
//!
//! Members tell each other of a change by advancing `changes` and waking who waits on it, so that
//! nobody spins. The calls are made once per start, but for the marks of failed stores, which are
//! wait-free.
//!
//! | step | operation | ordering | pairs with |
//! |---|---|---|---|
//! | the maker publishes what the region is | store of `phase` | Release | load of `phase`, Acquire: the fields before it are seen |
//! | a member says that it has mapped the file | store of its `stage` | Release | load of the `stage`, Acquire: its device and inode are seen |
//! | any of the two, or a failure, happened | add to `changes` | Release | load of `changes`, Acquire, before the look at the rest: a change after the look changes the word, and the wait ends |
//! | a store failed | set of a bit | Release | look at the bit, Acquire |
//!
//! There is no model of it in loom, which knows the threads of one process alone; the tests kill
//! processes between any two steps.

mod value;

use std::fs::File;
use std::io;
use std::mem::{offset_of, size_of};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use memmap2::{MmapMut, MmapOptions, MmapRaw};
use rustix::fs::Timespec;
use rustix::thread::futex;

use super::config::{Areas, Fingerprint, Geometry, MAX_RANKS};
use super::error::Reason;

pub(super) use value::{BadWord, Difference, Identity, Phase, Stage, Tag};

/// The first eight bytes of the file.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"kvferry\x01");

/// Changes whenever the layout of [`Words`] does.
const LAYOUT_VERSION: u32 = 1;

/// Features that a reader has to know. None yet.
const FEATURES: u64 = 0;

/// The words take this many bytes, whatever the page size: the marks begin behind them.
pub(super) const WORDS_BYTES: usize = 8192;

/// What begins the file.
#[derive(Debug)]
#[repr(C)]
struct Words {
    magic: AtomicU64,
    layout_version: AtomicU32,
    word_bytes: AtomicU32,
    features: AtomicU64,
    /// Random: tells two regions of one name apart.
    nonce: AtomicU64,
    /// Random: for the tables of whatever will be shared.
    hash_seed: AtomicU64,
    fingerprint: [AtomicU64; 2],
    header_bytes: AtomicU64,
    area_bytes: AtomicU64,
    area_stride: AtomicU64,
    slots: AtomicU64,
    slot_bytes: AtomicU64,
    ranks: AtomicU32,
    areas: AtomicU32,
    /// Who made the file.
    maker: AtomicU32,
    /// 1 where the name is kept.
    name_kept: AtomicU32,

    phase: AtomicU32,
    /// Advanced with every change below and of `phase`.
    changes: AtomicU32,
    /// The first who gave up: its rank and the code of its reason; 0 if nobody has.
    failure: AtomicU64,
    members: [Member; MAX_RANKS],
}

/// A rank, as it says itself. That it lives is said by its lock alone.
#[derive(Debug)]
#[repr(C, align(64))]
struct Member {
    stage: AtomicU32,
    device: AtomicU64,
    inode: AtomicU64,
    nonce: AtomicU64,
}

const _: () = assert!(size_of::<Words>() <= WORDS_BYTES);
const _: () = assert!(offset_of!(Words, magic) == 0);

/// Returns the length of the header of a region with this many slots, if it has one.
pub(super) fn bytes_for(slots: u64) -> Option<u64> {
    slots
        .div_ceil(64)
        .checked_mul(8)?
        .checked_add(WORDS_BYTES as u64)
}

/// The header of a mapped region.
#[derive(Debug)]
pub(super) struct Header {
    map: MmapRaw,
    slots: u64,
}

impl Header {
    /// Maps the words of a header, without the marks.
    pub(super) fn map_words(file: &File) -> io::Result<Self> {
        Self::map(file, WORDS_BYTES as u64, 0)
    }

    /// Maps a header with the marks of `slots`. The file is at least `bytes` long.
    pub(super) fn map(file: &File, bytes: u64, slots: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        Self::over(MmapOptions::new().len(bytes).map_raw(file)?, slots)
    }

    /// Makes a header for one process.
    pub(super) fn private(bytes: u64, slots: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        Self::over(MmapMut::map_anon(bytes)?.into(), slots)
    }

    fn over(map: MmapRaw, slots: u64) -> io::Result<Self> {
        if bytes_for(slots).is_none_or(|needed| (map.len() as u64) < needed) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self { map, slots })
    }

    fn words(&self) -> &Words {
        let words = self.map.as_mut_ptr().cast::<Words>();
        // SAFETY: the mapping begins at a page and is as long as the words (checked in `over`); it
        // lives as long as `self`. All fields are atomics, so that writes of others are no races and
        // every bit pattern is valid.
        unsafe { &*words }
    }

    /// Writes what the region is. Nobody else looks at it before [`set_phase`](Self::set_phase).
    pub(super) fn describe(&self, geometry: &Geometry, tag: &Tag) {
        let words = self.words();
        // Relaxed: the Release of `set_phase` publishes these.
        for (word, value) in [
            (&words.magic, MAGIC),
            (&words.features, FEATURES),
            (&words.nonce, tag.nonce),
            (&words.hash_seed, tag.hash_seed),
            (&words.fingerprint[0], halves(tag.fingerprint)[0]),
            (&words.fingerprint[1], halves(tag.fingerprint)[1]),
            (&words.header_bytes, geometry.header_bytes),
            (&words.area_bytes, geometry.layout.area_bytes),
            (&words.area_stride, geometry.area_stride),
            (&words.slots, geometry.layout.slots),
            (&words.slot_bytes, geometry.layout.slot_bytes),
        ] {
            word.store(value, Relaxed);
        }
        for (word, value) in [
            (&words.layout_version, LAYOUT_VERSION),
            (&words.word_bytes, size32::<Words>()),
            (&words.ranks, rank32(geometry.ranks)),
            (&words.areas, areas_code(geometry.layout.areas)),
            (&words.maker, rank32(tag.maker)),
            (&words.name_kept, u32::from(tag.name_kept)),
        ] {
            word.store(value, Relaxed);
        }
    }

    /// Compares what the region is with what this rank expects, word by word.
    pub(super) fn compare(
        &self,
        geometry: &Geometry,
        fingerprint: Fingerprint,
        name_kept: bool,
    ) -> Result<(), Difference> {
        let words = self.words();
        let print = halves(fingerprint);
        // Relaxed: `phase` was read with Acquire before.
        for (field, theirs, ours) in [
            ("the magic number", &words.magic, MAGIC),
            ("the set of features", &words.features, FEATURES),
            (
                "the fingerprint (low half)",
                &words.fingerprint[0],
                print[0],
            ),
            (
                "the fingerprint (high half)",
                &words.fingerprint[1],
                print[1],
            ),
            (
                "the length of the header",
                &words.header_bytes,
                geometry.header_bytes,
            ),
            (
                "the length of an area",
                &words.area_bytes,
                geometry.layout.area_bytes,
            ),
            (
                "the distance of areas",
                &words.area_stride,
                geometry.area_stride,
            ),
            ("the number of slots", &words.slots, geometry.layout.slots),
            (
                "the length of a slot",
                &words.slot_bytes,
                geometry.layout.slot_bytes,
            ),
        ] {
            differ(field, theirs.load(Relaxed), ours)?;
        }
        for (field, theirs, ours) in [
            (
                "the version of the layout",
                &words.layout_version,
                LAYOUT_VERSION,
            ),
            (
                "the length of the words",
                &words.word_bytes,
                size32::<Words>(),
            ),
            ("the number of ranks", &words.ranks, rank32(geometry.ranks)),
            (
                "whose areas they are",
                &words.areas,
                areas_code(geometry.layout.areas),
            ),
            (
                "whether the name is kept",
                &words.name_kept,
                u32::from(name_kept),
            ),
        ] {
            differ(field, theirs.load(Relaxed).into(), ours.into())?;
        }
        Ok(())
    }

    pub(super) fn nonce(&self) -> u64 {
        self.words().nonce.load(Relaxed)
    }

    pub(super) fn hash_seed(&self) -> u64 {
        self.words().hash_seed.load(Relaxed)
    }

    /// Whether the file says that its name is kept, of a header that may be anything.
    pub(super) fn keeps_name(&self) -> bool {
        let words = self.words();
        words.magic.load(Relaxed) == MAGIC && words.name_kept.load(Relaxed) == 1
    }

    /// Returns who made the file.
    pub(super) fn maker(&self, geometry: &Geometry) -> Result<usize, BadWord> {
        let value = self.words().maker.load(Relaxed);
        match usize::try_from(value) {
            Ok(rank) if rank < geometry.ranks => Ok(rank),
            _ => Err(BadWord {
                field: "the maker",
                value: value.into(),
            }),
        }
    }

    pub(super) fn phase(&self) -> Result<Phase, BadWord> {
        // Acquire: pairs with the Release in `set_phase`; makes what was described visible.
        let value = self.words().phase.load(Acquire);
        let known = Phase::ALL.into_iter().find(|phase| *phase as u32 == value);
        known.ok_or(BadWord {
            field: "the phase",
            value: value.into(),
        })
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        // Release: what was described is seen by whoever sees the phase.
        self.words().phase.store(phase as u32, Release);
        self.tell();
    }

    pub(super) fn stage(&self, rank: usize) -> Result<Stage, BadWord> {
        // Acquire: pairs with the Release in `set_stage`; makes the identity visible.
        let value = self.words().members[rank].stage.load(Acquire);
        let known = Stage::ALL.into_iter().find(|stage| *stage as u32 == value);
        known.ok_or(BadWord {
            field: "the stage of a rank",
            value: value.into(),
        })
    }

    pub(super) fn set_stage(&self, rank: usize, stage: Stage, identity: Identity) {
        let member = &self.words().members[rank];
        // Relaxed: the Release below publishes these.
        member.device.store(identity.device, Relaxed);
        member.inode.store(identity.inode, Relaxed);
        member.nonce.store(identity.nonce, Relaxed);
        // Release: the identity is seen by whoever sees the stage.
        member.stage.store(stage as u32, Release);
        self.tell();
    }

    /// Which file a member says that it has mapped.
    pub(super) fn identity(&self, rank: usize) -> Identity {
        let member = &self.words().members[rank];
        // Relaxed: `stage` was read with Acquire before.
        Identity {
            device: member.device.load(Relaxed),
            inode: member.inode.load(Relaxed),
            nonce: member.nonce.load(Relaxed),
        }
    }

    /// Tells the others that this rank gives up. The first to say so is heard.
    pub(super) fn fail(&self, rank: usize, reason: Reason) {
        let value = u64::from(rank32(rank)) << 32 | u64::from(reason.code());
        // Release and Relaxed: nothing but the word itself is published.
        self.words()
            .failure
            .compare_exchange(0, value, Release, Relaxed)
            .ok();
        self.tell();
    }

    /// Who gave up, if anyone, and why.
    pub(super) fn failure(&self) -> Option<(usize, Reason)> {
        // Relaxed: nothing but the word itself is published.
        let value = self.words().failure.load(Relaxed);
        let [_, _, _, _, reason @ ..] = value.to_be_bytes();
        (value != 0).then(|| {
            (
                (value >> 32) as usize,
                Reason::of_code(u32::from_be_bytes(reason)),
            )
        })
    }

    /// Returns a number that changes with every change. Read it before looking at anything else.
    pub(super) fn changes(&self) -> u32 {
        // Acquire: pairs with the Release in `tell`; whoever sees the new number sees the change.
        self.words().changes.load(Acquire)
    }

    /// Waits until there is a change after `seen`, or for this long. It may end early.
    pub(super) fn wait(&self, seen: u32, at_most: Duration) {
        // A time that cannot be said is longer than anyone waits.
        let timeout = Timespec::try_from(at_most).ok();
        // Any failure means that it is time to look again: the word has changed, a signal came, the
        // time is over. The word is shared by processes, so that the flag for private ones is absent.
        futex::wait(
            &self.words().changes,
            futex::Flags::empty(),
            seen,
            timeout.as_ref(),
        )
        .ok();
    }

    fn tell(&self) {
        let changes = &self.words().changes;
        // Release: pairs with the Acquire in `changes`.
        changes.fetch_add(1, Release);
        // It cannot fail on a word that is mapped, and whoever waits looks again after a while.
        futex::wake(changes, futex::Flags::empty(), i32::MAX as u32).ok();
    }

    pub(super) fn slots(&self) -> u64 {
        self.slots
    }

    fn mark(&self, slot: u64) -> Option<(&AtomicU64, u64)> {
        if slot >= self.slots {
            return None;
        }
        let word = usize::try_from(slot / 64).ok()?;
        // SAFETY: `over` has checked that the marks of all slots lie in the mapping, behind the words.
        let mark = unsafe { self.map.as_mut_ptr().add(WORDS_BYTES + word * 8) };
        let mark = NonNull::new(mark)?.cast::<u64>();
        // SAFETY: within the mapping (above), which lives as long as `self`; eight bytes from its
        // page, so aligned; nobody accesses it but with atomics.
        let mark = unsafe { AtomicU64::from_ptr(mark.as_ptr()) };
        Some((mark, 1 << (slot % 64)))
    }

    pub(super) fn set_failed(&self, slot: u64, failed: bool) -> Option<()> {
        let (word, bit) = self.mark(slot)?;
        // Release: pairs with the Acquire in `is_failed`; what was known of the slot comes with it.
        if failed {
            word.fetch_or(bit, Release);
        } else {
            word.fetch_and(!bit, Release);
        }
        Some(())
    }

    pub(super) fn is_failed(&self, slot: u64) -> Option<bool> {
        let (word, bit) = self.mark(slot)?;
        // Acquire: pairs with the Release in `set_failed`.
        Some(word.load(Acquire) & bit != 0)
    }
}

fn differ(field: &'static str, theirs: u64, ours: u64) -> Result<(), Difference> {
    if theirs == ours {
        return Ok(());
    }
    let (ours, theirs) = (ours.into(), theirs.into());
    Err(Difference {
        field,
        ours,
        theirs,
    })
}

fn halves(fingerprint: Fingerprint) -> [u64; 2] {
    let [low, high] = [fingerprint.0, fingerprint.0 >> 64];
    [low & u128::from(u64::MAX), high].map(|half| u64::try_from(half).unwrap_or(u64::MAX))
}

fn areas_code(areas: Areas) -> u32 {
    match areas {
        Areas::PerRank => 0,
        Areas::Shared => 1,
    }
}

/// A rank or a number of them: at most `MAX_RANKS`.
fn rank32(rank: usize) -> u32 {
    u32::try_from(rank).unwrap_or(u32::MAX)
}

const fn size32<T>() -> u32 {
    assert!(size_of::<T>() <= WORDS_BYTES);
    #[expect(clippy::cast_possible_truncation, reason = "it is at most WORDS_BYTES")]
    let size = size_of::<T>() as u32;
    size
}

#[cfg(test)]
mod tests;
