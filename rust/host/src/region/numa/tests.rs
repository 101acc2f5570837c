use super::*;

#[test]
fn lists_of_processors_are_read() {
    assert_eq!(numbers("0-3,8,10-11\n"), [0, 1, 2, 3, 8, 10, 11]);
    assert_eq!(numbers("0\n"), [0]);
    assert_eq!(numbers("\n"), [] as [usize; 0]);
    assert_eq!(numbers("x,1-,2"), [2]);
    assert!(numbers("0-18446744073709551615").len() <= CpuSet::MAX_CPU);
}

const MAPS: &str = "\
7f0000000000 default file=/x N0=9 kernelpagesize_kB=4
7f0000100000 default file=/dev/shm/kvferry-a mapped=256 N0=64 N1=192 kernelpagesize_kB=4
7f0000200000 default file=/dev/shm/kvferry-a N1=1 kernelpagesize_kB=2048
7f0000400000 default stack anon=3 N0=30 kernelpagesize_kB=4
";

#[test]
fn pages_are_counted_by_node_and_size() {
    let share = |node, addresses| share_in(MAPS, node, &addresses);
    let first = 0x7f00_0010_0000..0x7f00_0020_0000;
    assert_eq!(share(1, first.clone()), Some(0.75));
    assert_eq!(share(0, first.clone()), Some(0.25));
    assert_eq!(share(2, first), Some(0.0));
    // Both mappings: 64 ordinary pages of node 0, 192 and a huge one of node 1.
    let both = 0x7f00_0010_0000..0x7f00_0040_0000;
    assert_eq!(share(0, both), Some(256.0 / (1024.0 + 2048.0)));
    // A range in the middle of a mapping.
    assert_eq!(share(1, 0x7f00_0018_0000..0x7f00_0019_0000), Some(0.75));
    assert_eq!(share(0, 0x1000..0x2000), None);
    assert_eq!(share_in("", 0, &(0..1)), None);
}

#[test]
fn a_node_that_is_not_there_is_none() {
    assert!(matches!(Node::find(4095), Err(NoNode::Unknown)));
}

#[test]
fn the_nodes_of_this_machine_are_found() {
    let online = fs::read_to_string(format!("{NODES}/online")).unwrap();
    for number in numbers(&online) {
        match Node::find(u32::try_from(number).unwrap()) {
            Ok(None) => assert_eq!(numbers(&online).len(), 1),
            Ok(Some(node)) => assert!(node.processors() > 0),
            Err(error) => assert_eq!(error, NoNode::NoProcessors),
        }
    }
}

#[test]
fn a_thread_moves_to_the_processors_of_the_node() {
    // Any processor that this process may use stands for a node.
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let last = (0..CpuSet::MAX_CPU)
        .rfind(|number| allowed.is_set(*number))
        .unwrap();
    let node = Node {
        number: 1,
        processors: vec![last],
    };
    let there = std::thread::spawn(move || {
        node.run_here().unwrap();
        rustix::thread::sched_getaffinity(None).unwrap()
    });
    let there = there.join().unwrap();
    assert_eq!(there.count(), 1);
    assert!(there.is_set(last));
    // Nobody else moved.
    assert_eq!(rustix::thread::sched_getaffinity(None).unwrap(), allowed);
}
