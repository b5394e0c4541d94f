//! The socket and its thread.

use super::*;

#[test]
fn a_socket_in_use_is_reported_and_opened_when_it_is_free() {
    let world = World::new();
    let path = world.folder.path().join("run/job.sock");
    let shared = Arc::new(Shared::new("proc".into(), Subordinates::default(), 8));
    let mut second =
        Listener::new(path.clone(), options(&path), Arc::clone(&shared), Arc::clone(&world.checkpoints), now)
            .unwrap();
    second.turn(Some(Duration::ZERO)).unwrap();
    let taken = format!("another process listens on {}", path.display());
    assert_eq!(shared.state(), ClientState::Failed(SourceError::failed(Failure::Io, taken)));
    assert_eq!(world.shared.state(), ClientState::Listening);
    drop(world.listener);
    // The folder is unchanged: the first one removed its file.
    assert!(!path.exists());
    second.turn(Some(Duration::ZERO)).unwrap();
    assert_eq!(shared.state(), ClientState::Listening);
    assert!(path.exists());
}

#[test]
fn a_removed_socket_file_is_created_again_and_connections_stay_open() {
    let mut world = World::new();
    let mut before = world.connect();
    world.send(&mut before, HELLO);
    let path = world.folder.path().join("run/job.sock");
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    world.turn();
    assert!(!path.exists(), "it is not looked for all the time");
    pass(5);
    world.turn();
    assert_eq!(world.shared.state(), ClientState::Listening);
    let mut after = world.connect();
    world.send(&mut after, HELLO);
    world.send(&mut before, "{\"type\":\"step\",\"step\":3}\n");
    assert_eq!(world.count("memwarden_training_clients"), 2.0);
    assert!(world.sample().0.contains("memwarden_training_step{workload=\"slurm/17\",rank=\"3\"} 3"));
}

#[test]
fn the_thread_reads_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.sock");
    let shared = Arc::new(Shared::new(folder.path().to_path_buf(), Subordinates::default(), 8));
    let hold = listener::start(path.clone(), options(&path), Arc::clone(&shared), Arc::default()).unwrap();
    let wait = |what: &dyn Fn() -> bool| {
        while !what() {
            std::thread::yield_now()
        }
    };
    wait(&|| shared.state() == ClientState::Listening);
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(HELLO.as_bytes()).unwrap();
    wait(&|| shared.clients().iter().any(|(client, _)| lock(&client.rank).hello.is_some()));
    assert!(!hold.has_ended());
    drop(hold);
    wait(&|| !path.exists());
    wait(&|| shared.clients().is_empty());
}

#[test]
fn a_thread_that_failed_is_started_again() {
    let mut world = World::new();
    let path = world.folder.path().join("other.sock");
    world.source.options = options(&path);
    world.source.thread = None;
    let mut batch = Batch::new();
    world.source.sample(now(), &mut batch).unwrap();
    let Some((_, Some(hold))) = &world.source.thread else { panic!("no thread") };
    hold.wake();
    while !hold.has_ended() {
        std::thread::yield_now();
    }
    let why = world.source.sample(now(), &mut batch).unwrap_err().to_string();
    assert_eq!(why, "the thread of the job socket ended; it is restarted");
    world.source.sample(now(), &mut batch).unwrap();
}
