//! More clients than `max_connections`: each is told why, and operators come in.

use super::users::{Native, rules, soon, with_root};
use super::*;
use leeward_format::op::OpError;
use leeward_format::user::Presence;

const FULL: &str = "-ERR max number of clients reached";

/// As many clients as the limit of [`Cluster::start`] takes, which have been served.
fn crowd(cluster: &Cluster) -> Vec<Client> {
    let mut crowd: Vec<Client> = (0..20).map(|_| cluster.client(0)).collect();
    crowd.iter_mut().for_each(|client| assert_eq!(client.run("PING"), "+PONG"));
    crowd
}

fn get() -> Op {
    Op::Get { key: "a".into() }
}

#[test]
fn a_client_too_many_is_told_so_at_its_first_command_on_data_and_served_when_there_is_room() {
    let cluster = Cluster::start(1);
    let mut crowd = crowd(&cluster);
    assert_eq!(crowd[0].run_until_served("SET a 1"), "+OK");
    let (mut one_more, mut native) = (cluster.client(0), Native::connect(&cluster.servers[0].info().native_address));
    assert_eq!(one_more.run("GET a"), FULL);
    assert_eq!(one_more.run("DBSIZE"), FULL);
    assert!(one_more.run("CLIENT LIST").contains("cmd=ping"), "what touches no data is answered");
    match native.run(get()) {
        Some(OpResult::Error(OpError::Unavailable(why))) => assert!(why.contains("max_connections"), "{why}"),
        other => panic!("{other:?}"),
    }
    let users = native.run(Op::ListUsers);
    assert!(matches!(users, Some(OpResult::Users(_))), "what only operators ask is answered: {users:?}");
    assert_eq!(crowd[0].run("GET a"), "1", "the others go on");
    crowd.truncate(18);
    soon(|| (one_more.run("GET a") == "1").then_some(()));
    soon(|| native.run(get()).filter(|result| *result == OpResult::Value(Some("1".into()))));
}

#[test]
fn a_crowd_that_comes_again_and_again_closes_its_own_connections_and_is_told() {
    let cluster = Cluster::start(1);
    let mut crowd = crowd(&cluster);
    // More than may be beyond the limit. All come from one address, so the first of them go.
    let mut beyond: Vec<Client> = (0..40).map(|_| cluster.client(0)).collect();
    assert_eq!(beyond[39].run("PING"), "+PONG");
    assert_eq!((beyond[0].line(), beyond[0].line()), (FULL.into(), String::new()), "it is told, and closed");
    let native: Vec<Native> = (0..40).map(|_| Native::connect(&cluster.servers[0].info().native_address)).collect();
    let told = native.into_iter().next().expect("the first").reply();
    assert!(matches!(told, Some(Reply::Auth { refused: Some(OpError::Unavailable(_)) })), "{told:?}");
    assert_eq!(crowd[0].run("PING"), "+PONG");
    let (status, _) = http(&cluster.servers[0].info().admin_address, "/livez");
    assert_eq!(status, 200);
    drop((crowd, beyond));
    soon(|| (cluster.client(0).run("GET a") == "$-1").then_some(()));
}

#[test]
fn an_operator_comes_in_when_all_places_are_taken() {
    let cluster = with_root(1);
    let address = &cluster.servers[0].info().native_address;
    let app = rules("word", &["read,write@default"]);
    Native::of(address, "root", "secret").change("app", Presence::New, app);
    let mut crowd: Vec<Client> = (0..20).map(|_| cluster.client(0)).collect();
    for client in &mut crowd {
        soon(|| (client.run("AUTH app word") == "+OK" && client.run("GET a") == "1").then_some(()));
    }
    let mut app = cluster.client(0);
    assert_eq!([app.run("AUTH app word"), app.run("GET a")], ["+OK", FULL]);
    let mut native = Native::of(address, "app", "word");
    assert!(matches!(native.run(get()), Some(OpResult::Error(OpError::Unavailable(_)))));
    let mut root = cluster.client(0);
    assert_eq!([root.run("AUTH root secret"), root.run("GET a")], ["+OK", "1"]);
    assert!(root.run("CLIENT LIST").contains("user=app"));
    let mut native = Native::of(address, "root", "secret");
    assert_eq!(native.run(get()), Some(OpResult::Value(Some("1".into()))));
    // A crowd that comes after them takes none of their places.
    let _beyond: Vec<Client> = (0..40).map(|_| cluster.client(0)).collect();
    assert_eq!(root.run("GET a"), "1");
    assert_eq!(native.run(get()), Some(OpResult::Value(Some("1".into()))));
    assert_eq!(crowd[0].run("GET a"), "1");
}
