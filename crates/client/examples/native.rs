//! The native client: options for retries, puts and gets, a conditional write, and a scan.
//!
//! It takes the native addresses of some nodes; without any, the first node of `leeward dev` on this machine.
//!
//!     cargo run --release -- dev
//!     cargo run -p leeward-client --example native [HOST:PORT]...

use leeward_client::{Client, ClientError, ClientOptions, Condition, PutOptions, Range};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut nodes: Vec<String> = std::env::args().skip(1).collect();
    if nodes.is_empty() {
        nodes.push("127.0.0.1:7479".into());
    }
    let options = ClientOptions {
        name: "example".into(),
        // How long a call may take, retries included. A failover takes less.
        deadline: Duration::from_secs(10),
        // Fails sooner if nothing listens.
        connect_within: Duration::from_secs(2),
        // Every put has a request id: a put whose answer is lost is sent again, and executed once.
        retry_puts: true,
        ..ClientOptions::default()
    };
    // One node is enough to find the others. Clones of the client share its connections, and any thread may use them.
    let client = Client::connect(&nodes, options)?;

    for (key, value) in [("example/bay", "4 kn"), ("example/cape", "31 kn"), ("example/sound", "12 kn")] {
        client.put(key, value)?;
    }
    println!("cape: {:?}", client.get("example/cape")?);

    // The second put is refused, because the version that was read is no longer the newest.
    let read = client.get_pair("example/cape")?.ok_or("the pair was deleted meanwhile")?;
    let if_unchanged = PutOptions { when: Condition::Version(read.version), ..PutOptions::default() };
    let first = client.put_with("example/cape", "35 kn", if_unchanged.clone())?;
    let second = client.put_with("example/cape", "28 kn", if_unchanged)?;
    println!("first: {}, second: {}", first.done, second.done);

    // Pages are fetched as the loop goes. `0` comes after `/`, so the range has all keys that begin with `example/`.
    let range = Range { start: "example/".into(), end: Some("example0".into()), ..Range::default() };
    for entry in client.scan(range) {
        let (key, value) = entry?;
        println!("{} = {}", key.escape_ascii(), value.escape_ascii());
    }

    // An error says what the caller must do.
    match client.put("", "no key") {
        Err(ClientError::Op(error)) => println!("refused: {error}"),
        other => other?,
    }
    client.delete_range("example/", Some("example0".into()))?;
    Ok(())
}
