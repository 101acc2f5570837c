use super::*;

const SMAPS: &str = "\
7f0000000000-7f0000400000 rw-s 00000000 00:19 5 /dev/shm/kvferry-a
Size:               4096 kB
AnonHugePages:         0 kB
ShmemPmdMapped:     2048 kB
FilePmdMapped:         0 kB
VmFlags: rd wr sh mr mw me ms sd
7f0000800000-7f0000c00000 rw-p 00000000 00:00 0
AnonHugePages:      4096 kB
ShmemPmdMapped:        0 kB
";

#[test]
fn huge_pages_of_the_mapping_alone_are_counted() {
    let bytes = |range| huge_bytes(SMAPS, &range);
    assert_eq!(bytes(0x7f00_0000_0000..0x7f00_0040_0000), 2 << 20);
    assert_eq!(bytes(0x7f00_0080_0000..0x7f00_0080_1000), 4 << 20);
    assert_eq!(bytes(0x7f00_0000_0000..0x7f00_00c0_0000), 6 << 20);
    assert_eq!(bytes(0x7f00_0040_0000..0x7f00_0080_0000), 0);
}

const MOUNTS: &str = "\
23 1 0:21 / /proc rw - proc proc rw
24 1 0:22 / /dev/shm rw,nosuid - tmpfs tmpfs rw,size=1024k
25 1 0:23 / /a rw - tmpfs tmpfs rw,huge=never,size=4k
26 1 0:24 / /b rw shared:1 - tmpfs tmpfs rw,huge=advise
";

#[test]
fn how_a_file_system_is_mounted_says_why_there_are_none() {
    let never = NoHugePages::Mount {
        option: "huge=never".to_owned(),
    };
    assert_eq!(why_mount(MOUNTS, 0, 22), never);
    assert_eq!(why_mount(MOUNTS, 0, 23), never);
    assert_eq!(why_mount(MOUNTS, 0, 24), NoHugePages::Unsaid);
    assert_eq!(why_mount(MOUNTS, 9, 9), NoHugePages::Unsaid);
}

#[test]
fn huge_pages_that_are_not_set_aside_are_refused_at_once() {
    // No machine has set aside pages for all of this.
    assert!(
        map_set_aside(1 << 44, HugePages::Explicit(2 << 20))
            .unwrap()
            .is_err()
    );
    assert!(map_set_aside(1 << 20, HugePages::Transparent).is_none());
    assert!(map_set_aside(1 << 20, HugePages::Off).is_none());
}
