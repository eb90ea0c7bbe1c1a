//! Volumes that are lost, found again or given up, and two processes under one number: real nodes.

use super::*;
use leeward_format::cluster::{GroupConfig, RegionMap};
use leeward_format::op::OpError;
use std::fs;
use std::path::Path;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Asks the admin port for `path` until the answer contains `part`.
pub(super) fn wait_for(address: &str, path: &str, part: &str) -> (u16, String) {
    let begun = Instant::now();
    loop {
        let (status, body) = http(address, path);
        if body.contains(part) {
            return (status, body);
        }
        assert!(begun.elapsed() < TIMEOUT, "{path} never says {part:?}: {status} {body}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// One operation over a native connection.
pub(super) fn ask(address: &str, op: Op) -> OpResult {
    ask_in(address, &TableName::default(), op)
}

/// As [`ask`], on another table.
pub(super) fn ask_in(address: &str, table: &str, op: Op) -> OpResult {
    let table = table.parse().expect("the name of a table");
    ask_as(address, Request::Ops { id: 1, direct: false, table, ops: vec![op] })
}

/// [`ask`], of a request of one operation.
pub(super) fn ask_as(address: &str, request: Request) -> OpResult {
    let mut stream = TcpStream::connect(address).expect("a connection");
    let mut bytes = Vec::new();
    write_frame(FrameKind::Request, &request, &mut bytes);
    stream.write_all(&bytes).expect("a request");
    let mut input = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        let count = stream.read(&mut buffer).expect("an answer");
        assert!(count > 0, "the node closed the connection");
        input.extend_from_slice(&buffer[..count]);
        while let Some((reply, used)) = read_frame(FrameKind::Reply, &input, MAX_MESSAGE_BYTES).expect("a frame") {
            match reply {
                Reply::Results { mut results, .. } => return results.remove(0),
                Reply::Routes(_) => drop(input.drain(..used)),
                other => panic!("{other:?}"),
            }
        }
    }
}

/// [`ask`] for requests to the coordinator, once the node reaches it and has heard from it. On a busy machine its session
/// may end, and a node that has just started knows neither users nor tables.
pub(super) fn request(address: &str, op: &Op) -> OpResult {
    let begun = Instant::now();
    loop {
        let result = ask(address, op.clone());
        let has_not_heard = matches!(result, OpResult::Error(OpError::Recovering(_)));
        let is_cut_off = format!("{result:?}").contains("the coordinator cannot be reached");
        if !(has_not_heard || is_cut_off) || begun.elapsed() > TIMEOUT {
            return result;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn swap(left: &Path, right: &Path) {
    let aside = left.with_extension("aside");
    fs::rename(left, &aside).expect("a directory");
    if right.exists() {
        fs::rename(right, left).expect("a directory");
    }
    fs::rename(aside, right).expect("a directory");
}

#[test]
fn a_region_waits_for_a_volume_that_was_replaced_until_it_is_back_or_given_up() {
    let mut cluster = Cluster::start(1);
    let config = cluster.config(1, 1);
    assert_eq!(cluster.client(0).run_until_served("SET hello world"), "+OK");
    let (data, saved) = (config.data_dir(), cluster.dir.path().join("saved"));
    let restart = |cluster: &mut Cluster| {
        cluster.servers.pop().expect("the node").stop();
        swap(&data, &saved);
        cluster.servers.push(start(&config).expect("the node again"));
        cluster.servers[0].info().clone()
    };
    let waits = "waits for volume";
    let old_volume = cluster.servers[0].info().member.volume;

    // An empty directory is not what the region had: it is not served from there.
    let info = restart(&mut cluster);
    assert_ne!(info.member.volume, old_volume);
    let (_, status) = wait_for(&info.admin_address, "/status", waits);
    assert!(
        status.contains(&format!("volume {old_volume} of server 1, which is back with another volume")),
        "{status}"
    );
    assert!(http(&info.admin_address, "/").1.contains(waits), "the page says it too");
    assert!(cluster.client(0).run("GET hello").starts_with("-LOADING"));

    // The old directory is put back, and with it the region's data.
    restart(&mut cluster);
    assert_eq!(cluster.client(0).run_until_served("GET hello"), "world");

    // It is lost again, and given up.
    let info = restart(&mut cluster);
    wait_for(&info.admin_address, "/status", waits);
    let give_up = |region, server| {
        ask(&info.native_address, Op::AcceptLoss { region: RegionId(region), server: ServerId(server) })
    };
    let OpResult::Error(OpError::Invalid(why)) = give_up(1, 2) else { panic!("server 2 has nothing to do with it") };
    assert_eq!(why, "region 1 does not wait for server 2: it waits for server 1");
    assert_eq!((give_up(1, 1), give_up(2, 1)), (OpResult::Done, OpResult::Done));
    assert_eq!(cluster.client(0).run_until_served("GET hello"), "$-1");
    assert_eq!(cluster.client(0).run_until_served("SET hello again"), "+OK");
}

#[test]
fn a_second_process_under_one_number_waits_says_why_and_takes_over_in_the_end() {
    let mut cluster = Cluster::start(1);
    assert_eq!(cluster.client(0).run_until_served("SET hello world"), "+OK");
    let first = cluster.servers[0].info().clone();
    let mut config = cluster.config(1, 1);
    config.identity.data_dir = Some(cluster.dir.path().join("duplicate"));
    cluster.servers.push(start(&config).expect("a process that cannot know yet"));
    let duplicate = cluster.servers[1].info().clone();
    let holder = format!("volume {} and native address {}", first.member.volume, first.native_address);
    let (status, why) = wait_for(&duplicate.admin_address, "/readyz", "another process is server 1");
    assert!(status == 503 && why.contains(&holder), "{why}");
    let answer = cluster.client(1).run("GET hello");
    assert!(answer.starts_with("-UNAVAILABLE") && answer.contains(&holder), "{answer}");
    // The first process did not notice anything.
    assert_eq!(cluster.client(0).run("GET hello"), "world");
    assert_eq!(http(&first.admin_address, "/readyz").0, 200);

    cluster.servers.remove(0).stop();
    // It is server 1 now, with a volume that is not the one that the region needs.
    wait_for(&duplicate.admin_address, "/status", "waits for volume");
    assert!(cluster.client(0).run("GET hello").starts_with("-LOADING"));
}

#[test]
fn a_copy_of_a_volume_leaves_the_original_alone_until_that_has_ended() {
    let mut cluster = Cluster::start(1);
    assert_eq!(cluster.client(0).run_until_served("SET hello world"), "+OK");
    let config = cluster.config(1, 1);
    cluster.servers.remove(0).stop();
    // As a copy of the machine's disk, that is started elsewhere, would have it.
    let mut copied = config.clone();
    copied.identity.data_dir = Some(cluster.dir.path().join("copy"));
    fs::create_dir(copied.data_dir()).expect("a directory");
    for name in ["lock", VOLUME_NAME] {
        fs::copy(config.data_dir().join(name), copied.data_dir().join(name)).expect("a file");
    }
    cluster.servers.push(start(&config).expect("the original"));
    assert_eq!(cluster.client(0).run_until_served("GET hello"), "world");
    let original = cluster.servers[0].info().clone();

    cluster.servers.push(start(&copied).expect("a copy that cannot know yet"));
    let copy = cluster.servers[1].info().clone();
    assert!(copy.member.has_volume_of(&original.member) && copy.lock != original.lock);
    let (status, why) = wait_for(&copy.admin_address, "/readyz", "another process is server 1");
    assert!(status == 503 && why.contains("which is the same as this one's or a copy of it"), "{why}");
    assert!(cluster.client(1).run("GET hello").starts_with("-UNAVAILABLE"));
    assert_eq!(cluster.client(0).run("SET hello again"), "+OK");
    assert_eq!(cluster.client(0).run("GET hello"), "again");
    assert_eq!(http(&original.admin_address, "/readyz").0, 200);

    // A process that dies and starts again in the same directory takes its place at once, even while another one waits for it.
    cluster.servers.remove(0).stop();
    wait_for(&copy.admin_address, "/status", "waits for volume");
}

#[test]
fn copies_are_kept_on_different_hosts() {
    let cluster = Cluster::start_with(3, |config| {
        let host = if config.identity.server_id == 3 { "zone=b,host=h3" } else { "zone=a,host=h1" };
        config.identity.location = host.parse().expect("a location");
    });
    let mut table = TableOptions { replicas: 2, min_in_sync: 1, ..TableOptions::default() };
    table.name = "apart".into();
    let splits = (1..8).map(|split| vec![split].into()).collect();
    let table = Box::new(leeward_format::table::NewTable::new(table, splits));
    let made = request(&cluster.servers[0].info().native_address, &Op::CreateTable { table });
    assert_eq!(made, OpResult::Done);
    let is_placed = |map: &RegionMap| {
        let is_whole = |config: &GroupConfig| config.in_sync().count() == if config.table == "apart" { 2 } else { 3 };
        map.regions.len() == 10 && map.regions.iter().all(is_whole)
    };
    moves::wait_for(&cluster.servers[0], "every region has its copies", is_placed);
    let map = moves::map(&cluster.servers[0]);
    let apart = map.regions_of("apart");
    assert!(apart.iter().all(|config| config.members().any(|member| member.server.0 == 3)));
    let (_, status) = http(&cluster.servers[0].info().admin_address, "/status");
    assert!(status.contains("\"location\": \"zone=b,host=h3\""), "{status}");
    let (_, page) = http(&cluster.servers[0].info().admin_address, "/");
    assert!(page.contains("two or more copies of these regions are in zone=a,host=h1: 1, 2"), "{page}");
}

#[test]
fn what_is_in_the_way_of_a_volume_is_named_with_what_to_do() {
    let cluster = Cluster::start(1);
    let config = cluster.config(2, 1);
    let data = config.data_dir();
    let refused = |part: &str| {
        let error = start(&config).err().expect("it cannot start").to_string();
        assert!(error.contains(part) && error.contains(&data.display().to_string()), "{error}");
    };
    fs::write(&data, b"a file").expect("a file");
    refused("a file is where a directory should be: name another directory, or move the file away");
    fs::remove_file(&data).expect("it was just made");
    fs::create_dir_all(data.join(VOLUME_NAME)).expect("a directory");
    refused("volume is a directory and should be a file: move it away, or use another directory");
    fs::remove_dir(data.join(VOLUME_NAME)).expect("it was just made");
    fs::write(data.join(VOLUME_NAME), [b'x'; 100]).expect("a file");
    refused("not a Leeward volume; nothing was changed. Give Leeward another directory");
}
