//! Puts memory on a NUMA node, by touching it first from threads that run there.
//!
//! The system gives a page from the node of the thread that touches it first. That needs no more than
//! the right to choose one's processors, where `mbind` and `move_pages` are forbidden in containers
//! by default. It is a wish: a node that is full gives no page, and another does. Where the pages
//! came to lie is counted afterwards.

use std::fs;
use std::io;
use std::ops::Range;

use rustix::thread::{CpuSet, sched_setaffinity};

const NODES: &str = "/sys/devices/system/node";

/// A node, with its processors.
#[derive(Debug)]
pub(super) struct Node {
    number: u32,
    processors: Vec<usize>,
}

/// Why memory is not put on the node that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoNode {
    /// It is not there.
    #[error("the machine does not have that node")]
    Unknown,
    /// It has memory alone.
    #[error("the node has no processors")]
    NoProcessors,
    /// The container's or the service's set of processors excludes it.
    #[error("this process may not run there")]
    NotAllowed,
}

impl Node {
    /// Finds a node. `None` is the only one: there is nothing to choose.
    pub(super) fn find(number: u32) -> Result<Option<Self>, NoNode> {
        // A kernel that knows no nodes behaves as if there were node 0 alone.
        let online = fs::read_to_string(format!("{NODES}/online"));
        let nodes = numbers(online.as_deref().unwrap_or("0"));
        if !nodes.contains(&(number as usize)) {
            return Err(NoNode::Unknown);
        }
        if nodes.len() == 1 {
            return Ok(None);
        }
        let list = fs::read_to_string(format!("{NODES}/node{number}/cpulist"));
        let processors = numbers(&list.map_err(|_| NoNode::Unknown)?);
        if processors.is_empty() {
            return Err(NoNode::NoProcessors);
        }
        Ok(Some(Self { number, processors }))
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    pub(super) fn processors(&self) -> usize {
        self.processors.len()
    }

    /// Lets the calling thread run on the node's processors alone.
    pub(super) fn run_here(&self) -> io::Result<()> {
        let mut set = CpuSet::new();
        for &processor in self
            .processors
            .iter()
            .filter(|&&number| number < CpuSet::MAX_CPU)
        {
            set.set(processor);
        }
        Ok(sched_setaffinity(None, &set)?)
    }
}

/// Returns which share of the pages at these addresses lies on a node; none if nothing is known.
pub(super) fn share_on(node: u32, addresses: &Range<usize>) -> Option<f64> {
    share_in(
        &fs::read_to_string("/proc/self/numa_maps").ok()?,
        node,
        addresses,
    )
}

/// Counts pages in a text like that of `/proc/self/numa_maps`, whose lines begin with the address of
/// a mapping and are in order. Pages have different sizes.
fn share_in(maps: &str, node: u32, addresses: &Range<usize>) -> Option<f64> {
    let start = |line: &str| usize::from_str_radix(line.split(' ').next()?, 16).ok();
    let before = maps
        .lines()
        .filter_map(start)
        .filter(|&at| at <= addresses.start)
        .max()?;
    let (mut there, mut all) = (0, 0);
    for line in maps.lines() {
        if !start(line).is_some_and(|at| at >= before && at < addresses.end) {
            continue;
        }
        let words = || {
            line.split_ascii_whitespace()
                .filter_map(|word| word.split_once('='))
        };
        let size = words().find(|(name, _)| *name == "kernelpagesize_kB");
        let size: u64 = size.and_then(|(_, value)| value.parse().ok()).unwrap_or(4);
        for (name, value) in words() {
            let number = name
                .strip_prefix('N')
                .and_then(|number| number.parse::<u32>().ok());
            let (Some(number), Ok(pages)) = (number, value.parse::<u64>()) else {
                continue;
            };
            all += pages * size;
            there += if number == node { pages * size } else { 0 };
        }
    }
    (all > 0).then(|| there as f64 / all as f64)
}

/// Reads a list like `0-3,8`. What is no number is left out.
fn numbers(list: &str) -> Vec<usize> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    });
    // More than a machine can have means that the text is none of the system's.
    ranges
        .flat_map(|range| range.take(CpuSet::MAX_CPU))
        .collect()
}

#[cfg(test)]
mod tests;
