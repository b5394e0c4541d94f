//! Limits of clients and users.

use super::*;

#[test]
fn an_invalid_line_is_dropped_and_the_next_is_read() {
    let mut world = World::new();
    let (mut bad, mut good) = (world.connect(), world.connect());
    world.send(&mut good, HELLO);
    world.send(&mut bad, "{\"type\":\"step\",\"step\":1}\n");
    // It connected first, and reports later that it is rank 3.
    pass(1);
    world.send(&mut bad, &format!("{HELLO}\u{0}\u{1}\n[]\n{{\"type\":\"step\",\"step\":-4}}\n"));
    bad.write_all(b"{\"type\":\"step\",\"step\":7,\"loss\":\xff}\n").unwrap();
    world.turn();
    world.send(&mut bad, &"x".repeat(1_500));
    world.send(&mut bad, &"x".repeat(1_500));
    world.send(&mut bad, "\n{\"type\":\"step\",\"step\":9}\n{\"torn");
    let stepped = world.sample().0;
    assert!(stepped.contains("memwarden_training_step{workload=\"slurm/17\",rank=\"3@PID\"} 9"), "{stepped}");
    drop(bad);
    world.turn();
    for (kind, expected) in
        [("json", 2.0), ("key", 1.0), ("encoding", 1.0), ("length", 1.0), ("torn", 1.0), ("no_hello", 1.0)]
    {
        assert_eq!(world.errors(kind), expected, "{kind}");
    }
    assert_eq!(world.count("memwarden_training_clients"), 1.0);
}

#[test]
fn stalled_lines_take_little_memory() {
    let mut world = World::new();
    let mut streams: Vec<UnixStream> = (0..6).map(|_| world.connect()).collect();
    for stream in &mut streams {
        world.send(stream, &"x".repeat(1_000));
    }
    // 4,096 bytes for all of them.
    assert_eq!(world.errors("memory"), 2.0);
    pass(31);
    world.turn();
    assert_eq!(world.errors("stalled"), 4.0);
    for stream in &mut streams {
        world.send(stream, &format!("\n{HELLO}"));
    }
    assert!(world.sample().0.contains("memwarden_training_ranks{workload=\"slurm/17\"} 6"));
}

#[test]
fn a_client_over_its_rate_is_paused_and_the_others_are_read() {
    let mut world = World::new();
    let (mut flood, mut good) = (world.connect(), world.connect());
    world.send(&mut flood, HELLO);
    world.send(&mut good, HELLO);
    let many = "{\"type\":\"step\",\"step\":1}\n".repeat(10_000);
    // Messages that do not fit into the socket are dropped by a client.
    let mut sent = 0;
    while let Ok(more) = flood.write(&many.as_bytes()[sent % many.len()..]) {
        sent += more;
    }
    world.turn();
    let received = world.count("memwarden_training_messages_total{kind=\"step\"}");
    assert!((201.0..4_000.0).contains(&received), "{received}");
    for _ in 0..5 {
        world.turn();
    }
    assert_eq!(world.count("memwarden_training_messages_total{kind=\"step\"}"), received, "it is not read");
    world.send(&mut good, "{\"type\":\"step\",\"step\":2}\n");
    assert_eq!(world.count("memwarden_training_messages_total{kind=\"step\"}"), received + 1.0);
    pass(6);
    world.turn();
    world.turn();
    assert!(world.count("memwarden_training_messages_total{kind=\"step\"}") > received + 100.0);
    assert_eq!(world.count("memwarden_training_client_pauses_total"), 2.0);
    drop(flood);
    for _ in 0..200 {
        pass(6);
        world.turn();
    }
    assert_eq!(world.count("memwarden_training_clients"), 1.0, "its end is detected");
}

/// Sends messages until the socket is full.
fn fill(stream: &mut UnixStream) {
    let many = "{\"type\":\"step\",\"step\":1}\n".repeat(1_000);
    // A message that the socket takes only partly is continued by the next write.
    let mut sent = 0;
    while let Ok(more) = stream.write(&many.as_bytes()[sent % many.len()..]) {
        sent += more;
    }
}

#[test]
fn full_connections_do_not_delay_another_user_by_a_round() {
    let many = |options: &mut Options| {
        (options.max_clients, options.max_clients_per_user, options.messages_per_second) =
            (200, 200, 1_000_000_000)
    };
    let mut world = World::with(many);
    let mut flood: Vec<UnixStream> = (0..100).map(|_| world.connect()).collect();
    for stream in &mut flood {
        world.send(stream, HELLO);
        fill(stream);
    }
    let received = |world: &World| world.shared.counts.bytes.load(Ordering::Relaxed);
    let most = (listener::BUDGET + 16 * 1024) as u64;
    for _ in 0..5 {
        let before = received(&world);
        world.turn();
        let read = received(&world) - before;
        assert!((1..=most).contains(&read), "{read} bytes in one round");
    }
    let mut other = world.connect();
    world.listener.give_newest_to(61_001);
    for step in 1..=5 {
        flood.iter_mut().for_each(fill);
        let received = world.count("memwarden_training_messages_total{kind=\"event\"}");
        other.write_all(format!("{HELLO}{{\"type\":\"event\",\"name\":\"{step}\"}}\n").as_bytes()).unwrap();
        world.turn();
        assert_eq!(
            world.count("memwarden_training_messages_total{kind=\"event\"}"),
            received + 1.0,
            "in one round"
        );
    }
}

#[test]
fn every_user_with_a_full_connection_is_read() {
    let many = |options: &mut Options| {
        (options.max_clients, options.max_clients_per_user, options.messages_per_second) =
            (200, 200, 1_000_000_000)
    };
    let mut world = World::with(many);
    let mut flood: Vec<UnixStream> = (0..100).map(|_| world.connect()).collect();
    for stream in &mut flood {
        stream.write_all(HELLO.as_bytes()).unwrap();
        fill(stream);
    }
    let hellos = |world: &mut World| world.count("memwarden_training_messages_total{kind=\"hello\"}");
    world.turn();
    let first = hellos(&mut world);
    assert!((1.0..100.0).contains(&first), "{first} of 100 in the first round");
    // At this many reads per round, clients that were read before continue to send.
    let mut rounds = 1;
    while hellos(&mut world) < 100.0 {
        flood.iter_mut().for_each(fill);
        world.turn();
        rounds += 1;
        assert!(rounds < 100, "{} of 100 have been read", hellos(&mut world));
    }
}

#[test]
fn too_many_clients_are_refused() {
    let mut world = World::new();
    let streams: Vec<UnixStream> = (0..9).map(|_| world.connect()).collect();
    assert_eq!(world.count("memwarden_training_clients_refused_total{reason=\"user\"}"), 3.0);
    assert_eq!(world.count("memwarden_training_clients"), 6.0);
    drop(streams);
    world.turn();
    let _again = world.connect();
    assert_eq!(world.count("memwarden_training_clients"), 1.0);
}
