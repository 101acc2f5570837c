//! How the ranks of an engine come to map one file.
//!
//! | who | steps |
//! |---|---|
//! | maker | makes the file, locks byte 0 and its own, gives the header its room, describes the region, gives the file its length |
//! | joiner | finds the file, compares what the header says, locks its own byte, waits for the length |
//! | all | map, touch their share, say so in the header, wait for the others |
//! | maker | removes the name, and says so: the region is complete |
//!
//! 1. Whoever waits looks at least every 50 ms whether those it waits for still hold their locks.
//! 2. A rank that gives up says so in the header; the maker also removes the file. A rank of another
//!    engine, or one that expects another region, says nothing and holds no lock.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use memmap2::MmapRaw;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::claim::{self, Found, Holder, Remove, Seat};
use super::config::{Geometry, RegionConfig};
use super::error::RegionError;
use super::header::{BadWord, Header, Identity, Phase, Stage, WORDS_BYTES};
use super::report::RegionReport;
use super::settle::{self, Memory, reached};
use super::touch::TICK;
use super::{OnProgress, PinnedRegion, RegionStage, limits, pages, tell};

/// Who may make the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Make,
    Join,
    Either,
}

/// Opens a region.
pub(super) fn open(
    config: &RegionConfig,
    role: Role,
    progress: OnProgress<'_>,
) -> Result<PinnedRegion, RegionError> {
    let geometry = Geometry::new(config)?;
    let path = config.path()?;
    limits::check_mapping(geometry.file_bytes())?;
    let start = Start {
        config,
        geometry,
        path,
        begun: Instant::now(),
    };
    let removed = match role {
        Role::Join => Vec::new(),
        Role::Make | Role::Either => claim::sweep(&config.directory),
    };
    let member = start.member(role, progress)?;
    let mut region = member.complete(progress)?;
    region.report.removed = removed;
    Ok(region)
}

/// A rank that looks for its place.
struct Start<'a> {
    config: &'a RegionConfig,
    geometry: Geometry,
    path: PathBuf,
    begun: Instant,
}

impl<'a> Start<'a> {
    /// Makes the file or joins it. Every turn that changes nothing waits, and the time is limited.
    fn member(self, role: Role, progress: OnProgress<'_>) -> Result<Member<'a>, RegionError> {
        let mut pause = Duration::from_millis(1);
        loop {
            if role != Role::Join
                && let Some(file) = claim::make(&self.path)?
            {
                // A wish to stop is heard once the file is locked: only then may its maker remove it.
                let wish = reached(progress, RegionStage::Made);
                if self.lock(&file)? {
                    return self.maker(file, wish, progress);
                }
            } else {
                let remove = role != Role::Join;
                let remove_it = if remove { Remove::Yes } else { Remove::No };
                match claim::find(&self.path, remove_it)? {
                    Found::Used(file) if role == Role::Make => self.refuse(&file)?,
                    Found::Used(file) => {
                        if let Some(header) = self.join(&file)? {
                            return self.joiner(file, header, progress);
                        }
                    }
                    Found::Removed => continue,
                    Found::Nothing | Found::Leftover => {}
                }
            }
            tell(progress, RegionStage::Searching, 0, 0)?;
            self.in_time(|| (0..self.geometry.ranks).filter(|rank| *rank != self.config.rank))?;
            thread::sleep(pause);
            pause = (pause * 2).min(TICK);
        }
    }

    /// Locks a file that this rank has made, unless someone took it for a leftover.
    fn lock(&self, file: &File) -> Result<bool, RegionError> {
        Ok(claim::take(&self.path, file, Seat::Maker)?
            && claim::take(&self.path, file, Seat::Rank(self.config.rank))?
            && claim::is_named(&self.path, file)?)
    }

    /// Prepares a file that this rank has locked.
    fn maker(
        self,
        file: File,
        wish: Result<(), RegionError>,
        progress: OnProgress<'_>,
    ) -> Result<Member<'a>, RegionError> {
        let prepared = wish.and_then(|()| self.prepare(&file, progress));
        match prepared {
            Ok(header) => Ok(self.into_member(file, header, true)),
            Err(error) => {
                claim::remove_own(&self.path, &file).ok();
                Err(error)
            }
        }
    }

    fn prepare(&self, file: &File, progress: OnProgress<'_>) -> Result<Header, RegionError> {
        let geometry = &self.geometry;
        reached(progress, RegionStage::Locked)?;
        limits::check_file_length(geometry.file_bytes())?;
        limits::check_room(&self.config.directory, file, geometry.file_bytes())?;
        // What is set aside for huge pages is not among the memory that is available.
        if !pages::is_hugetlbfs(file) {
            limits::check_memory(geometry.file_bytes())?;
        }
        let flags = FallocateFlags::empty();
        rustix::fs::fallocate(file, flags, 0, geometry.header_bytes)
            .map_err(|error| self.explain("fallocate", file, error.into()))?;
        reached(progress, RegionStage::HeaderSized)?;
        let header = self.map_header(file)?;
        let (rank, kept) = (self.config.rank, self.config.keep_name);
        header.describe(geometry, &settle::tag(self.config.fingerprint, rank, kept)?);
        header.set_phase(Phase::Described);
        header.set_stage(rank, Stage::Joined, self.identity(file, &header)?);
        if let Err(error) = self.size(file, progress) {
            header.fail(rank, error.reason());
            return Err(error);
        }
        header.set_phase(Phase::Sized);
        Ok(header)
    }

    fn size(&self, file: &File, progress: OnProgress<'_>) -> Result<(), RegionError> {
        reached(progress, RegionStage::Described)?;
        rustix::fs::ftruncate(file, self.geometry.file_bytes())
            .map_err(|error| claim::failed("ftruncate", &self.path, error.into()))?;
        reached(progress, RegionStage::Sized)
    }

    /// Sees whether this rank can join a file that others use. `None` means: look again later.
    fn join(&self, file: &File) -> Result<Option<Header>, RegionError> {
        let path = &self.path;
        if self.length(file)? < WORDS_BYTES as u64 {
            return Ok(None);
        }
        let words = Header::map_words(file).map_err(|error| claim::failed("mmap", path, error))?;
        let phase = words.phase().map_err(|word| self.corrupt(word));
        let in_use = || RegionError::InUse { path: path.clone() };
        match claim::holder(path, file, Seat::Maker)? {
            Holder::Member => {}
            // An engine whose maker has ended, or a start that is about to give up.
            Holder::Nobody if phase.is_ok_and(|phase| phase == Phase::Complete) => {
                return Err(in_use());
            }
            Holder::Nobody | Holder::Remover => return Ok(None),
        }
        let phase = phase?;
        if phase == Phase::Writing {
            return Ok(None);
        }
        let compared = words.compare(
            &self.geometry,
            self.config.fingerprint,
            self.config.keep_name,
        );
        compared.map_err(|difference| RegionError::Mismatch {
            path: path.clone(),
            field: difference.field,
            ours: difference.ours,
            theirs: difference.theirs,
        })?;
        if phase == Phase::Complete {
            return Err(in_use());
        }
        if !claim::take(path, file, Seat::Rank(self.config.rank))? {
            return match claim::holder(path, file, Seat::Rank(self.config.rank))? {
                Holder::Member => Err(RegionError::RankTaken {
                    path: path.clone(),
                    rank: self.config.rank,
                }),
                Holder::Nobody | Holder::Remover => Ok(None),
            };
        }
        if !claim::is_named(path, file)? {
            return Ok(None);
        }
        // The maker gave the whole header its room before it described the region.
        if self.length(file)? < self.geometry.header_bytes {
            let (field, value) = ("the length", self.length(file)?);
            return Err(self.corrupt(BadWord { field, value }));
        }
        Ok(Some(self.map_header(file)?))
    }

    /// Waits for the length of a file that this rank has joined.
    fn joiner(
        self,
        file: File,
        header: Header,
        progress: OnProgress<'_>,
    ) -> Result<Member<'a>, RegionError> {
        let identity = self.identity(&file, &header)?;
        header.set_stage(self.config.rank, Stage::Joined, identity);
        let member = self.into_member(file, header, false);
        let has_length = |header: &Header| Ok(header.phase()? >= Phase::Sized);
        let sized = member
            .wait(RegionStage::Joined, progress, has_length)
            .and_then(|()| match member.start.length(&member.file)? {
                length if length >= member.start.geometry.file_bytes() => Ok(()),
                value => Err(member.start.corrupt(BadWord {
                    field: "the length",
                    value,
                })),
            });
        match sized {
            Ok(()) => Ok(member),
            Err(error) => Err(member.give_up(error)),
        }
    }

    /// Refuses a file that another engine uses, unless it is about to be removed.
    fn refuse(&self, file: &File) -> Result<(), RegionError> {
        let path = self.path.clone();
        match claim::holder(&path, file, Seat::Maker)? {
            Holder::Remover => Ok(()),
            Holder::Member | Holder::Nobody => Err(RegionError::InUse { path }),
        }
    }

    fn in_time<I: Iterator<Item = usize>>(
        &self,
        missing: impl FnOnce() -> I,
    ) -> Result<(), RegionError> {
        let waited = self.begun.elapsed();
        if waited < self.config.timeout {
            return Ok(());
        }
        Err(RegionError::Timeout {
            path: self.path.clone(),
            waited,
            missing: missing().collect(),
        })
    }

    fn map_header(&self, file: &File) -> Result<Header, RegionError> {
        Header::map(file, self.geometry.header_bytes, self.geometry.layout.slots)
            .map_err(|error| self.explain("mmap", file, error))
    }

    /// Says what it means that the system has no room for a part of the file.
    fn explain(&self, call: &'static str, file: &File, error: io::Error) -> RegionError {
        let directory = || self.config.directory.clone();
        let (need, page) = (self.geometry.file_bytes(), self.geometry.alignment);
        match Errno::from_io_error(&error) {
            Some(Errno::NOSPC | Errno::DQUOT) if !pages::is_hugetlbfs(file) => {
                RegionError::NoSpace {
                    directory: directory(),
                    need,
                    have: limits::room(file).unwrap_or(0),
                }
            }
            Some(Errno::NOSPC | Errno::NOMEM) if pages::is_hugetlbfs(file) => {
                RegionError::HugePages {
                    directory: directory(),
                    pages: need / page,
                    page,
                }
            }
            _ => claim::failed(call, &self.path, error),
        }
    }

    fn length(&self, file: &File) -> Result<u64, RegionError> {
        let length = claim::status(&self.path, file)?.st_size;
        // The system gives no negative length.
        Ok(u64::try_from(length).unwrap_or(0))
    }

    fn identity(&self, file: &File, header: &Header) -> Result<Identity, RegionError> {
        let status = claim::status(&self.path, file)?;
        Ok(Identity {
            device: status.st_dev,
            inode: status.st_ino,
            nonce: header.nonce(),
        })
    }

    fn corrupt(&self, word: BadWord) -> RegionError {
        RegionError::Corrupt {
            path: self.path.clone(),
            field: word.field,
            value: word.value,
        }
    }

    fn into_member(self, file: File, header: Header, maker: bool) -> Member<'a> {
        Member {
            start: self,
            file,
            header,
            maker,
        }
    }
}

/// A rank that holds its seat in a file that the name still means.
struct Member<'a> {
    start: Start<'a>,
    file: File,
    header: Header,
    maker: bool,
}

impl Member<'_> {
    /// Does what all ranks do.
    fn complete(self, progress: OnProgress<'_>) -> Result<PinnedRegion, RegionError> {
        match self.settle(progress) {
            Ok((map, report)) => Ok(PinnedRegion {
                map,
                start: 0,
                header: self.header,
                geometry: self.start.geometry,
                file: Some(self.file),
                report,
            }),
            Err(error) => Err(self.give_up(error)),
        }
    }

    fn settle(&self, progress: OnProgress<'_>) -> Result<(MmapRaw, RegionReport), RegionError> {
        let Start {
            config,
            geometry,
            path,
            ..
        } = &self.start;
        let map = settle::map_areas(&self.file, geometry)
            .map_err(|error| self.start.explain("mmap", &self.file, error))?;
        pages::advise(&map, config.memory.huge_pages);
        reached(progress, RegionStage::Mapped)?;
        let memory = Memory {
            map: &map,
            range: range(geometry.share(config.rank)),
            file: Some((&self.file, geometry.header_bytes)),
            directory: &config.directory,
            options: config.memory,
            ranks: geometry.ranks,
            alignment: range((0, geometry.alignment)).end,
        };
        let mut report = memory.settle(None, progress)?;
        report.file = Some((path.clone(), config.keep_name));
        self.meet(progress)?;
        Ok((map, report))
    }

    /// Waits for all ranks, compares what they have mapped, and has the name removed.
    fn meet(&self, progress: OnProgress<'_>) -> Result<(), RegionError> {
        let identity = self.start.identity(&self.file, &self.header)?;
        self.header
            .set_stage(self.start.config.rank, Stage::Arrived, identity);
        self.wait(RegionStage::Waiting, progress, |header| {
            let mut stages = (0..self.start.geometry.ranks).map(|rank| header.stage(rank));
            stages.try_fold(true, |all, stage| Ok(all && stage? == Stage::Arrived))
        })?;
        for rank in 0..self.start.geometry.ranks {
            if self.header.identity(rank) != identity {
                let path = self.start.path.clone();
                return Err(RegionError::DifferentFile { path, rank });
            }
        }
        if !self.maker {
            let complete = |header: &Header| Ok(header.phase()? == Phase::Complete);
            return self.wait(RegionStage::Met, progress, complete);
        }
        reached(progress, RegionStage::Met)?;
        if !self.start.config.keep_name {
            claim::remove_own(&self.start.path, &self.file)?;
        }
        reached(progress, RegionStage::Unnamed)?;
        self.header.set_phase(Phase::Complete);
        Ok(())
    }

    /// Waits until the header says so, everybody needed for it being alive. The stage is told at
    /// least once.
    fn wait(
        &self,
        stage: RegionStage,
        progress: OnProgress<'_>,
        done: impl Fn(&Header) -> Result<bool, BadWord>,
    ) -> Result<(), RegionError> {
        let ranks = self.start.geometry.ranks;
        loop {
            let seen = self.header.changes();
            let missing = || (0..ranks).filter(|rank| !self.has_arrived(*rank));
            let arrived = ranks - missing().count();
            tell(progress, stage, arrived as u64, ranks as u64)?;
            if done(&self.header).map_err(|word| self.start.corrupt(word))? {
                return Ok(());
            }
            if let Err(error) = self.all_well() {
                // Others may have gone on, and ended, since the look above.
                return if done(&self.header) == Ok(true) {
                    Ok(())
                } else {
                    Err(error)
                };
            }
            self.start.in_time(missing)?;
            self.header.wait(seen, TICK);
        }
    }

    fn has_arrived(&self, rank: usize) -> bool {
        self.header.stage(rank) == Ok(Stage::Arrived)
    }

    /// Sees whether anyone gave up, or who came is there no more.
    fn all_well(&self) -> Result<(), RegionError> {
        let path = || self.start.path.clone();
        if let Some((rank, reason)) = self.header.failure() {
            let path = path();
            return Err(RegionError::MemberFailed { path, rank, reason });
        }
        let corrupt = |word| self.start.corrupt(word);
        let maker = self.header.maker(&self.start.geometry).map_err(corrupt)?;
        for rank in 0..self.start.geometry.ranks {
            let stage = self.header.stage(rank).map_err(corrupt)?;
            if stage == Stage::Absent || rank == self.start.config.rank {
                continue;
            }
            let seat = if rank == maker {
                Seat::Maker
            } else {
                Seat::Rank(rank)
            };
            if claim::holder(&self.start.path, &self.file, seat)? == Holder::Nobody {
                // It may have said why just before it let go.
                let path = path();
                return Err(match self.header.failure() {
                    Some((rank, reason)) => RegionError::MemberFailed { path, rank, reason },
                    None => RegionError::MemberDied { path, rank },
                });
            }
        }
        Ok(())
    }

    /// Tells the others, and cleans up.
    fn give_up(&self, error: RegionError) -> RegionError {
        self.header.fail(self.start.config.rank, error.reason());
        if self.maker {
            claim::remove_own(&self.start.path, &self.file).ok();
        }
        error
    }
}

/// Part of a mapping. The file's length fits an address space, so that its parts do.
fn range((offset, length): (u64, u64)) -> Range<usize> {
    let [start, end] =
        [offset, offset + length].map(|at| usize::try_from(at).unwrap_or(usize::MAX));
    start..end
}

#[cfg(test)]
mod tests;
