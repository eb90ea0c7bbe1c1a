//! Over loopback.

use super::*;

#[test]
fn bytes_arrive_whole_and_late_and_the_connection_ends_with_the_proxy() {
    let echo = TcpListener::bind("127.0.0.1:0").expect("a port");
    let to = echo.local_addr().expect("it listens");
    thread::spawn(move || {
        for stream in echo.incoming().flatten() {
            thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    let delay = Duration::from_millis(100);
    let proxy = Proxy::start("127.0.0.1:0".parse().expect("an address"), to, delay).expect("a port");
    let mut stream = TcpStream::connect(proxy.address()).expect("it listens");
    let sent: Vec<u8> = (0..200_000).map(|at| (at % 251) as u8).collect();
    let begun = Instant::now();
    let mut writer = stream.try_clone().expect("a descriptor");
    let all = sent.clone();
    let writing = thread::spawn(move || writer.write_all(&all));
    let mut received = vec![0; sent.len()];
    stream.read_exact(&mut received).expect("it comes back");
    assert!(begun.elapsed() >= delay * 2, "{:?}", begun.elapsed());
    assert_eq!(received, sent);
    writing.join().expect("no panic").expect("it was sent");
    drop(proxy);
    assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
}
