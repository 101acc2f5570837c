//! What the system will not give, asked before it is needed: the answer later would be a signal.
//!
//! A number that the system does not tell is no limit. All of these change while one looks; what
//! passes here can still fail, with an error, when the memory is touched.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

use super::error::RegionError;

/// Checks the limits of this process that a mapping of this length meets.
pub(super) fn check_mapping(need: u64) -> Result<(), RegionError> {
    let Some(limit) = getrlimit(Resource::As).current else {
        return Ok(());
    };
    let used = fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| {
            let pages: u64 = text.split(' ').next()?.parse().ok()?;
            Some(pages * rustix::param::page_size() as u64)
        });
    let have = limit.saturating_sub(used.unwrap_or(0));
    if need > have {
        return Err(RegionError::AddressSpace { need, have });
    }
    Ok(())
}

/// Checks the limit of the length of a file: whoever exceeds it gets a signal.
pub(super) fn check_file_length(need: u64) -> Result<(), RegionError> {
    match getrlimit(Resource::Fsize).current {
        Some(have) if need > have => Err(RegionError::FileSize { need, have }),
        _ => Ok(()),
    }
}

/// Checks how much room the file system of a file has.
pub(super) fn check_room(directory: &Path, file: &File, need: u64) -> Result<(), RegionError> {
    match room(file) {
        Some(have) if need > have => Err(RegionError::NoSpace {
            directory: directory.to_owned(),
            need,
            have,
        }),
        _ => Ok(()),
    }
}

/// How much room the file system of a file has, if it says.
pub(super) fn room(file: &File) -> Option<u64> {
    let system = rustix::fs::fstatvfs(file).ok()?;
    // A tmpfs without a limit says that it has no blocks at all.
    (system.f_blocks > 0).then(|| system.f_bavail.saturating_mul(system.f_frsize))
}

/// Checks how much memory the machine and the control groups have left.
pub(super) fn check_memory(need: u64) -> Result<(), RegionError> {
    let available = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| available(&text));
    if let Some(have) = available
        && need > have
    {
        return Err(RegionError::Memory { need, have });
    }
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    check_groups(&groups, &mounts, need)
}

/// The limit of locked memory, if there is one.
pub(super) fn locked_memory() -> Option<u64> {
    getrlimit(Resource::Memlock).current
}

/// Reads what is available in a text like `/proc/meminfo`, with what can be moved to swap.
fn available(text: &str) -> Option<u64> {
    let kilobytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let memory = kilobytes("MemAvailable:")?;
    Some((memory + kilobytes("SwapFree:").unwrap_or(0)) << 10)
}

/// Checks the limits of a process's control groups, of both versions, and of those above them.
fn check_groups(groups: &str, mounts: &str, need: u64) -> Result<(), RegionError> {
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let version = match controllers {
            "" => &SECOND,
            _ if controllers.split(',').any(|name| name == "memory") => &FIRST,
            _ => continue,
        };
        let Some(place) = mounts.lines().find_map(|line| place(line, version, path)) else {
            continue;
        };
        let (top, group) = place;
        for group in group
            .ancestors()
            .take_while(|group| group.starts_with(&top))
        {
            if let Some(have) = version.left(group)
                && need > have
            {
                let group = group.to_owned();
                return Err(RegionError::ControlGroup { group, need, have });
            }
        }
    }
    Ok(())
}

/// How a version of control groups calls its files.
struct Version {
    file_system: &'static str,
    limit: &'static str,
    used: &'static str,
    /// The line of `memory.stat` with the file pages that the kernel takes back first.
    reclaimable: &'static str,
}

const FIRST: Version = Version {
    file_system: "cgroup",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file ",
};

const SECOND: Version = Version {
    file_system: "cgroup2",
    limit: "memory.max",
    used: "memory.current",
    reclaimable: "inactive_file ",
};

impl Version {
    /// How much a group has left, if it has a limit ("max" is none, as is what is no number).
    fn left(&self, group: &Path) -> Option<u64> {
        let number = |name: &str| -> Option<u64> {
            fs::read_to_string(group.join(name))
                .ok()?
                .trim()
                .parse()
                .ok()
        };
        let (limit, used) = (number(self.limit)?, number(self.used)?);
        let statistics = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
        let reclaimable = statistics
            .lines()
            .find_map(|line| line.strip_prefix(self.reclaimable));
        let reclaimable: u64 = reclaimable.and_then(|text| text.parse().ok()).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(reclaimable)))
    }
}

/// Where a group lies, by a line of `/proc/self/mountinfo`: the top of the mount, and the group.
fn place(line: &str, version: &Version, path: &str) -> Option<(PathBuf, PathBuf)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut system = system.split(' ');
    let (file_system, options) = (system.next()?, system.nth(1)?);
    // The first version has a tree for each controller, or for a few.
    let has_memory =
        file_system != FIRST.file_system || options.split(',').any(|option| option == "memory");
    if file_system != version.file_system || !has_memory {
        return None;
    }
    let mut mount = mount.split(' ').skip(3);
    let (root, top) = (mount.next()?, PathBuf::from(mount.next()?));
    // A container may see only its own part of the tree, under a path that it does not know.
    let below = Path::new(path).strip_prefix(root).ok();
    let below = below
        .filter(|below| top.join(below).is_dir())
        .map(Path::to_owned);
    let group = top.join(below.unwrap_or_default());
    Some((top, group))
}

#[cfg(test)]
mod tests;
