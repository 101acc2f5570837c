use super::*;

#[test]
fn a_report_is_one_line_that_says_what_is_missing_and_why() {
    let report = RegionReport {
        file: Some((PathBuf::from("/dev/shm/kvferry-a"), false)),
        bytes: 64 << 30,
        ranks: 4,
        touched_bytes: 16 << 30,
        touch_time: Duration::from_millis(1234),
        touch_threads: 8,
        huge_page_bytes: None,
        numa_node: Some(1),
        removed: vec![PathBuf::from("/dev/shm/kvferry-old")],
        notes: vec![
            RegionNote::HugePages {
                got: 0,
                asked: 16 << 30,
                why: NoHugePages::Mount {
                    option: "huge=never".to_owned(),
                },
            },
            RegionNote::OtherNode {
                node: 1,
                share: 0.91,
            },
            RegionNote::LockedMemory { limit: 8 << 20 },
        ],
    };
    assert_eq!(
        report.to_string(),
        "host region of 64.00 GiB in /dev/shm/kvferry-a, its name removed (ranks: 4); touched 16.00 \
         GiB in 1.23 s (threads: 8); ordinary pages; on NUMA node 1; removed the leftover \
         /dev/shm/kvferry-old; 0 bytes of 16.00 GiB in huge pages: the file system is mounted with \
         huge=never: remount it with huge=advise; 91 % of it on node 1: the node is full, or the \
         process has a memory policy; RLIMIT_MEMLOCK is 8.00 MiB: accelerators register memory \
         without it, mlock of the region would need it (ulimit -l unlimited)"
    );
    let private = RegionReport {
        file: None,
        huge_page_bytes: Some(2 << 20),
        numa_node: None,
        removed: Vec::new(),
        notes: Vec::new(),
        ..report
    };
    assert_eq!(
        private.to_string(),
        "host region of 64.00 GiB, private; touched 16.00 GiB in 1.23 s (threads: 8); pages of 2.00 \
         MiB"
    );
}

#[test]
fn bytes_are_read_by_people() {
    let text = |bytes| Bytes(bytes).to_string();
    assert_eq!(text(0), "0 bytes");
    assert_eq!(text(1023), "1023 bytes");
    assert_eq!(text(1024), "1.00 KiB");
    assert_eq!(text(1536), "1.50 KiB");
    assert_eq!(text(u64::MAX), "16777215.99 TiB");
}
