//! Who may use the file of a name, and who may remove it: by locks of single bytes of the file.
//!
//! The locks belong to the open file, and end with the process, however it ends. Process numbers
//! mean nothing between containers, and are not used. A process that is forked keeps the locks of
//! its parent, as it keeps its mappings.
//!
//! | byte | locked by |
//! |---|---|
//! | 0 | who made the file |
//! | 1 + rank | who is this rank |
//! | all | who is about to remove the file |
//!
//! 1. A file is removed only by someone who holds all bytes, or byte 0, and has seen that the name
//!    means this very file. Nobody else then removes it or can put another in its place: a name is
//!    given only where there is none.
//! 2. A process uses a file only if the name still meant it after its own byte was locked. Between
//!    making a file and locking it, another start may take it for a leftover and remove it; the maker
//!    notices, and begins again.
//! 3. A file that is not empty, not of this user, or does not begin as a region does, is left alone.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::config::PREFIX;
use super::error::{Foreign, RegionError};
use super::header::{Header, MAGIC, WORDS_BYTES};

/// A byte of the file that someone locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seat {
    /// Who made the file.
    Maker,
    /// A rank.
    Rank(usize),
}

/// Who holds a lock, as far as another open file can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    Nobody,
    /// A process that sits there.
    Member,
    /// One that is about to remove the file.
    Remover,
}

/// What is there under a name.
#[derive(Debug)]
pub(super) enum Found {
    Nothing,
    /// A file that nobody uses.
    Leftover,
    /// A file that nobody used: it is gone.
    Removed,
    /// A file that someone holds a lock of.
    Used(File),
}

/// Which files that nobody uses to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Remove {
    No,
    /// Those that do not keep their name on purpose.
    UnlessKept,
    Yes,
}

/// Makes the file, unless there is one.
pub(super) fn make(path: &Path) -> Result<Option<File>, RegionError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => Ok(Some(file.into())),
        Err(Errno::EXIST) => Ok(None),
        Err(error) => Err(failed("open", path, error.into())),
    }
}

/// Looks what is there, and removes it if it is a leftover and `remove` says so.
pub(super) fn find(path: &Path, remove: Remove) -> Result<Found, RegionError> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file: File = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => file.into(),
        Err(Errno::NOENT) => return Ok(Found::Nothing),
        Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => {
            return Err(foreign(path, Foreign::NoFile));
        }
        Err(error) => return Err(failed("open", path, error.into())),
    };
    if let Some(what) = what_else(&file).map_err(|error| failed("read", path, error))? {
        return Err(foreign(path, what));
    }
    if !lock(&file, 0, 0).map_err(|error| failed("lock", path, error))? {
        return Ok(Found::Used(file));
    }
    let remove = match remove {
        Remove::No => false,
        Remove::UnlessKept => !keeps_name(&file),
        Remove::Yes => true,
    };
    if !remove {
        return Ok(Found::Leftover);
    }
    if is_named(path, &file)? {
        unlink(path)?;
    }
    Ok(Found::Removed)
}

/// Removes what killed engines of this user have left in a directory. What cannot be looked at is
/// left alone, as is what keeps its name on purpose.
pub(super) fn sweep(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut removed = Vec::new();
    for entry in entries {
        let ours = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(PREFIX));
        let path = entry.path();
        if ours && matches!(find(&path, Remove::UnlessKept), Ok(Found::Removed)) {
            removed.push(path);
        }
    }
    removed
}

/// Locks a seat, unless someone else has.
pub(super) fn take(path: &Path, file: &File, seat: Seat) -> Result<bool, RegionError> {
    lock(file, seat.byte(), 1).map_err(|error| failed("lock", path, error))
}

/// Who sits there, if not the owner of `file`.
pub(super) fn holder(path: &Path, file: &File, seat: Seat) -> Result<Holder, RegionError> {
    let mut request = request(seat.byte(), 1);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut request))
        .map_err(|error| failed("lock", path, error.into()))?;
    if request.l_type == unlocked() {
        return Ok(Holder::Nobody);
    }
    // Members lock one byte, which the system may join with the next if one open file holds both.
    let whole = request.l_start == 0 && request.l_len == 0;
    Ok(if whole {
        Holder::Remover
    } else {
        Holder::Member
    })
}

/// Whether the name means this file.
pub(super) fn is_named(path: &Path, file: &File) -> Result<bool, RegionError> {
    let ours = status(path, file)?;
    match rustix::fs::lstat(path) {
        Ok(named) => Ok((named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(failed("stat", path, error.into())),
    }
}

/// Removes the name of a file that the caller has made and holds the lock of.
pub(super) fn remove_own(path: &Path, file: &File) -> Result<(), RegionError> {
    // The file is still named: I1 allows nobody else to remove it while its maker holds byte 0. A
    // person may have, though.
    if is_named(path, file)? {
        unlink(path)?;
    }
    Ok(())
}

pub(super) fn status(path: &Path, file: &File) -> Result<Stat, RegionError> {
    rustix::fs::fstat(file).map_err(|error| failed("stat", path, error.into()))
}

pub(super) fn failed(call: &'static str, path: &Path, source: io::Error) -> RegionError {
    let path = path.to_owned();
    RegionError::Io { call, path, source }
}

impl Seat {
    fn byte(self) -> libc::off_t {
        match self {
            Self::Maker => 0,
            // Ranks are few.
            Self::Rank(rank) => 1 + libc::off_t::try_from(rank).unwrap_or(libc::off_t::MAX - 1),
        }
    }
}

fn unlink(path: &Path) -> Result<(), RegionError> {
    match rustix::fs::unlink(path) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(failed("unlink", path, error.into())),
    }
}

fn foreign(path: &Path, what: Foreign) -> RegionError {
    let path = path.to_owned();
    RegionError::Foreign { path, what }
}

/// What a file is, if it is no region and no beginning of one.
fn what_else(file: &File) -> io::Result<Option<Foreign>> {
    let status = rustix::fs::fstat(file)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Ok(Some(Foreign::NoFile));
    }
    if status.st_uid != rustix::process::geteuid().as_raw() {
        return Ok(Some(Foreign::Owner(status.st_uid)));
    }
    let mut magic = [0; 8];
    let length = file.read_at(&mut magic, 0)?;
    // The file gets its length before its first bytes.
    let begun = length == 0 || (length == 8 && magic == [0; 8]);
    let ours = length == 8 && magic == MAGIC.to_ne_bytes();
    Ok((!begun && !ours).then_some(Foreign::Content))
}

/// Whether a file keeps its name on purpose.
fn keeps_name(file: &File) -> bool {
    let long_enough = file
        .metadata()
        .is_ok_and(|data| data.len() >= WORDS_BYTES as u64);
    long_enough && Header::map_words(file).is_ok_and(|header| header.keeps_name())
}

/// Tries to lock bytes; a length of 0 means all from there on.
fn lock(file: &File, start: libc::off_t, length: libc::off_t) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&request(start, length))) {
        Ok(_) => Ok(true),
        Err(nix::Error::EAGAIN | nix::Error::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn request(start: libc::off_t, length: libc::off_t) -> libc::flock {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the two constants are 0 and 1"
    )]
    let (kind, whence) = (
        libc::F_WRLCK as libc::c_short,
        libc::SEEK_SET as libc::c_short,
    );
    libc::flock {
        l_type: kind,
        l_whence: whence,
        l_start: start,
        l_len: length,
        // The system wants 0 here for locks of open files.
        l_pid: 0,
    }
}

fn unlocked() -> libc::c_short {
    #[expect(clippy::cast_possible_truncation, reason = "the constant is 2")]
    let kind = libc::F_UNLCK as libc::c_short;
    kind
}

#[cfg(test)]
mod tests;
