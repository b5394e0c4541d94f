//! Which process is which rank.

use super::*;

#[test]
fn two_processes_of_one_rank_are_distinguished() {
    let mut world = World::new();
    let mut streams: Vec<UnixStream> = (0..3).map(|_| world.connect()).collect();
    for stream in &mut streams {
        world.send(stream, HELLO);
        world.send(stream, "{\"type\":\"step\",\"step\":1}\n");
    }
    let steps = |shown: &str| -> Vec<String> {
        let lines = shown.lines().filter(|line| {
            ["training_step{", "training_ranks", "rank_conflicts"].iter().any(|word| line.contains(word))
        });
        lines.map(str::to_owned).collect()
    };
    check(
        &steps(&world.sample().0).join("\n"),
        expect![[r#"
        memwarden_training_step{workload="slurm/17",rank="3"} 1
        memwarden_training_step{workload="slurm/17",rank="3@PID"} 1
        memwarden_training_step{workload="slurm/17",rank="3@PID.4"} 1
        memwarden_training_ranks{workload="slurm/17"} 3
        memwarden_training_rank_conflicts{workload="slurm/17"} 2
    "#]],
    );
    // The first one ends: the second gets its rank.
    streams.remove(0);
    world.turn();
    check(
        &steps(&world.sample().0).join("\n"),
        expect![[r#"
        memwarden_training_step{workload="slurm/17",rank="3"} 1
        memwarden_training_step{workload="slurm/17",rank="3@PID"} 1
        memwarden_training_ranks{workload="slurm/17"} 2
        memwarden_training_rank_conflicts{workload="slurm/17"} 1
    "#]],
    );
}

#[test]
fn an_exited_process_is_not_shown_while_its_connection_is_open() {
    let mut world = World::new();
    let mut stream = world.connect();
    world.send(&mut stream, HELLO);
    assert!(world.sample().0.contains("memwarden_rank_info"));
    world.running = false;
    assert!(!world.sample().0.contains("rank=\"3\""), "{}", world.sample().0);
}

#[test]
fn allocator_values_belong_to_the_sender_until_it_exits() {
    let mut world = World::new();
    let mut stream = world.connect();
    world.send(&mut stream, HELLO);
    let mem = "{\"type\":\"mem\",\"devices\":{\"0\":{\"allocated\":50,\"reserved\":70,\"free\":10},\"1\":{\"reserved\":9}}}";
    world.send(&mut stream, &format!("{mem}\n"));
    let current = crate::model::facts::Allocator {
        process: Some(world.own),
        workload: Some(world.facts().members[0].workload.key.clone()),
        allocated: Bytes::new(50),
        reserved: Some(Bytes::new(70)),
        free: Some(Bytes::new(10)),
        age: Some(Duration::ZERO),
    };
    assert_eq!(world.sample_facts().allocators, std::slice::from_ref(&current));
    drop(stream);
    world.turn();
    let ended = crate::model::facts::Allocator { process: None, ..current };
    assert_eq!(world.sample_facts().allocators, [ended]);
    assert_eq!(world.sample_facts().allocators, []);
}

#[test]
fn one_user_with_many_series_leaves_places_for_anothers() {
    let mut world = World::new();
    let (own, _other) = UnixStream::pair().unwrap();
    let own = Arc::new(own);
    let phases: String = (0..32)
        .map(|phase| format!("{{\"type\":\"phase\",\"name\":\"p{phase}\",\"state\":\"end\",\"count\":1}}\n"))
        .collect();
    for number in 1..=300 {
        let uid = if number == 300 { 61_001 } else { 61_002 };
        let peer = crate::host::peer::Peer { pid: None, uid };
        let client = world.shared.greet(1_000 + number, peer, uid, &own, now());
        let hello = format!("{{\"type\":\"hello\",\"v\":1,\"rank\":{number},\"world\":1000}}");
        for line in [hello.as_str()].into_iter().chain(phases.lines()) {
            client.receive(line.as_bytes(), now(), &world.shared.counts, &world.checkpoints).unwrap();
        }
        pass(1);
    }
    let mut batch = Batch::new();
    world.source.sample(now(), &mut batch).unwrap();
    let short: Vec<_> = batch.facts.shortages.iter().map(|short| (short.limit, short.user)).collect();
    assert_eq!(short, [("training_names", Some(61_002))]);
    let (families, ..) = batch.seal();
    let family =
        families.iter().find(|family| family.desc.name == "memwarden_training_phases_total").unwrap();
    let of = |rank: &str| family.points.iter().filter(|point| point.labels[1].as_str() == rank).count();
    assert_eq!((of("300"), of("1"), of("299")), (32, 32, 0));
}

#[test]
fn a_user_who_changes_its_names_all_the_time_brings_in_few_new_series() {
    let mut world = World::new();
    let (own, _other) = UnixStream::pair().unwrap();
    let own = Arc::new(own);
    let mut distinct = std::collections::HashSet::new();
    let mut named = Vec::new();
    // Ten minutes, in which 10 processes without a GPU connect and end each second.
    for second in 0..600 {
        let mut clients = Vec::new();
        for place in 0..10 {
            let number = 100_000 + second * 10 + place;
            let peer = crate::host::peer::Peer { pid: None, uid: 61_002 };
            let client = world.shared.greet(number, peer, 61_002, &own, now());
            let lines = format!(
                "{{\"type\":\"hello\",\"v\":1,\"rank\":{number},\"world\":1000000,\"run\":\"r{number}\"}}\n\
                 {{\"type\":\"step\",\"step\":1,\"dt\":0.5}}\n\
                 {{\"type\":\"mem\",\"devices\":{{\"{place}\":{{\"allocated\":50,\"reserved\":70}}}}}}\n\
                 {{\"type\":\"phase\",\"name\":\"p{number}\",\"state\":\"end\",\"count\":1}}"
            );
            for line in lines.lines() {
                client.receive(line.as_bytes(), now(), &world.shared.counts, &world.checkpoints).unwrap();
            }
            clients.push(client);
        }
        let mut batch = Batch::new();
        world.source.sample(now(), &mut batch).unwrap();
        named.extend(batch.facts.shortages.iter().map(|short| (short.limit, short.user)));
        let series = |family: &crate::model::point::Family| {
            let name = family.desc.name;
            family.points.iter().map(move |point| format!("{name}{:?}", point.labels)).collect::<Vec<_>>()
        };
        distinct.extend(batch.seal().0.iter().flat_map(series));
        clients.iter().for_each(|client| client.part(&world.checkpoints));
        pass(1);
    }
    assert!((100..8_000).contains(&distinct.len()), "{}", distinct.len());
    assert!(named.contains(&("training_names", Some(61_002))), "the user is named");
}

#[test]
fn failures_of_many_workloads_of_one_user_leave_places_for_anothers() {
    let mut world = World::new();
    for number in 0..MOST_REMEMBERED as u64 + 10 {
        world.source.remember(&Label::from(number), 61_002, 1, Timestamp::from_secs(number));
    }
    assert_eq!(world.source.ooms.len(), MOST_REMEMBERED);
    world.source.remember(&"alice".into(), 61_001, 1, Timestamp::from_secs(5_000));
    assert_eq!(world.source.ooms.len(), MOST_REMEMBERED);
    assert_eq!(world.source.ooms.get(&Label::from("alice")).unwrap().ooms, 1);
    assert!(!world.source.ooms.contains_key(&Label::from(0_u64)), "the oldest goes");
}

#[test]
fn a_process_that_changes_its_rank_has_one_series() {
    let mut world = World::new();
    let mut stream = world.connect();
    for rank in 0..150 {
        world.send(&mut stream, &format!("{{\"type\":\"hello\",\"v\":1,\"rank\":{rank},\"world\":100}}\n"));
    }
    assert_eq!(world.errors("rank"), 146.0);
    let shown = world.sample().0;
    assert_eq!(shown.lines().filter(|line| line.starts_with("memwarden_rank_info")).count(), 1);
}
