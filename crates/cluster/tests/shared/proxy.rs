//! A network between a client and its coordinator that can be cut or led to another server. Its threads end with the connections.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Carries bytes between a client and a server until it is cut. Then it accepts bytes and sends none.
pub(crate) struct Proxy {
    /// Where clients connect.
    pub(crate) address: SocketAddr,
    cut: Arc<AtomicBool>,
    host: Arc<Mutex<SocketAddr>>,
}

impl Proxy {
    /// To the server at `host`.
    pub(crate) fn start(host: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let cut = Arc::new(AtomicBool::new(false));
        let state = cut.clone();
        let host = Arc::new(Mutex::new(host));
        let leads_to = host.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let host = *leads_to.lock().unwrap();
                let Ok(server) = TcpStream::connect(host) else { continue };
                for (from, to) in [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)] {
                    let state = state.clone();
                    std::thread::spawn(move || carry(from, to, &state));
                }
            }
        });
        Proxy { address, cut, host }
    }

    /// Leads new connections to the server at `host`.
    pub(crate) fn lead_to(&self, host: SocketAddr) {
        *self.host.lock().unwrap() = host;
    }

    /// Cuts the present connections, or lets new connections work.
    pub(crate) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, cut: &AtomicBool) {
    let mut buffer = [0; 4096];
    let mut broken = false;
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        // Once cut, a connection stays silent: new ones work again after the cut is mended.
        broken |= cut.load(Ordering::SeqCst);
        if !broken && to.write_all(&buffer[..bytes]).is_err() {
            return;
        }
    }
    drop(to.shutdown(Shutdown::Both));
}
