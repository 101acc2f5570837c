use std::fs;

use super::*;

#[test]
fn what_is_available_includes_swap() {
    let text = "MemTotal:  100 kB\nMemAvailable:   60 kB\nSwapTotal: 9 kB\nSwapFree:  4 kB\n";
    assert_eq!(available(text), Some(64 << 10));
    assert_eq!(available("MemAvailable: 60 kB\n"), Some(60 << 10));
    assert_eq!(available("MemFree: 60 kB\n"), None);
    assert!(available(&fs::read_to_string("/proc/meminfo").unwrap()).is_some());
}

/// A tree of control groups in a folder, with a text like `/proc/self/mountinfo` about it.
struct Tree {
    top: tempfile::TempDir,
    mounts: String,
}

impl Tree {
    fn new(file_system: &str, root: &str) -> Self {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().display();
        let mounts = format!(
            "30 1 0:9 / /proc rw - proc proc rw\n\
             31 1 0:8 {root} {path} rw shared:4 - {file_system} {file_system} rw,memory\n"
        );
        Self { top, mounts }
    }

    fn group(&self, path: &str, files: &[(&str, &str)]) {
        let group = self.top.path().join(path);
        fs::create_dir_all(&group).unwrap();
        for (name, text) in files {
            fs::write(group.join(name), text).unwrap();
        }
    }

    fn check(&self, groups: &str, need: u64) -> Result<(), RegionError> {
        check_groups(groups, &self.mounts, need)
    }

    /// Expects that exactly this much is left, because of this group.
    fn assert_left(&self, groups: &str, left: u64, group: &str) {
        self.check(groups, left).unwrap();
        let error = self.check(groups, left + 1).unwrap_err();
        let RegionError::ControlGroup {
            group: at,
            need,
            have,
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!((need, have), (left + 1, left));
        assert_eq!(at, self.top.path().join(group));
    }
}

#[test]
fn the_second_version_is_read_with_what_can_be_reclaimed() {
    let tree = Tree::new("cgroup2", "/");
    let statistics = "anon 50\ninactive_file 30\nactive_file 7\n";
    let files = [
        ("memory.max", "100\n"),
        ("memory.current", "90\n"),
        ("memory.stat", statistics),
    ];
    tree.group("a/b", &files);
    tree.assert_left("0::/a/b\n", 40, "a/b");
}

#[test]
fn the_first_version_is_read() {
    let tree = Tree::new("cgroup", "/");
    tree.group(
        "pod",
        &[
            ("memory.limit_in_bytes", "100"),
            ("memory.usage_in_bytes", "70"),
            ("memory.stat", "inactive_file 5\ntotal_inactive_file 20\n"),
        ],
    );
    tree.assert_left("5:cpu:/pod\n4:hugetlb,memory:/pod\n0::/\n", 50, "pod");
}

#[test]
fn the_tightest_group_above_counts() {
    let tree = Tree::new("cgroup2", "/");
    tree.group("a", &[("memory.max", "60"), ("memory.current", "50")]);
    tree.group("a/b", &[("memory.max", "max"), ("memory.current", "10")]);
    tree.group("a/b/c", &[("memory.max", "1000"), ("memory.current", "10")]);
    tree.assert_left("0::/a/b/c\n", 10, "a");
}

#[test]
fn a_container_that_sees_its_own_part_of_the_tree_finds_its_limit() {
    // The path is that of the host, the mount shows the container's group at its top.
    let files = [("memory.max", "100"), ("memory.current", "0")];
    let tree = Tree::new("cgroup2", "/docker/abc");
    tree.group("", &files);
    tree.group("inner", &files);
    tree.assert_left("0::/docker/abc\n", 100, "");
    tree.assert_left("0::/docker/abc/inner\n", 100, "inner");
    tree.assert_left("0::/../../x\n", 100, "");
    let tree = Tree::new("cgroup2", "/");
    tree.group("", &files);
    tree.assert_left("0::/kubepods/unseen\n", 100, "");
}

#[test]
fn what_is_used_beyond_the_limit_leaves_nothing() {
    let tree = Tree::new("cgroup2", "/");
    tree.group("a", &[("memory.max", "100"), ("memory.current", "120")]);
    tree.assert_left("0::/a\n", 0, "a");
}

#[test]
fn no_limit_is_none() {
    let tree = Tree::new("cgroup2", "/");
    tree.group("a", &[("memory.max", "max"), ("memory.current", "120")]);
    for groups in ["0::/a\n", "", "rubbish\n", "4:memory:/a\n"] {
        tree.check(groups, u64::MAX).unwrap();
    }
}

#[test]
fn this_machine_has_room_for_a_page() {
    check_memory(4096).unwrap();
    check_mapping(4096).unwrap();
    check_file_length(4096).unwrap();
    let file = tempfile::tempfile().unwrap();
    check_room(Path::new("/tmp"), &file, 4096).unwrap();
    let refused = check_room(Path::new("/tmp"), &file, u64::MAX);
    assert!(matches!(refused, Err(RegionError::NoSpace { .. })));
    assert!(matches!(
        check_memory(u64::MAX),
        Err(RegionError::Memory { .. })
    ));
}
