//! The sockets of links: TCP, and Unix-domain sockets that also carry file descriptors.
//!
//! Sends never block; a receive blocks if the caller wants it. A thread waits in [`wait`], where a [`Waker`] can wake
//! it. All calls may come from any thread.

use leeward_security::tls::Session;
use parking_lot::Mutex;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
    net::{
        self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt,
    },
};
use std::{
    collections::VecDeque,
    fs, io,
    io::{IoSlice, IoSliceMut, Read, Write},
    mem::MaybeUninit,
    net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream},
    },
    path::PathBuf,
    time::{Duration, Instant},
};

/// Most file descriptors taken with one receive; links never send more than one at a time.
const MAX_FDS: usize = 8;

/// Most connections that the kernel has established, and that wait to be accepted; no more than the kernel permits. A
/// peer that finds the queue full repeats its first packet only after a second.
const CONNECT_QUEUE: i32 = 4096;

/// The kind of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Network {
    /// "host:port".
    Tcp,
    /// "@name" in the abstract namespace, or the path of a socket.
    Unix,
}

/// Wakes a thread that is in [`wait`].
pub(crate) struct Waker(OwnedFd);

impl Waker {
    /// A waker that was not woken.
    pub(crate) fn new() -> io::Result<Waker> {
        Ok(Waker(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }
    /// Ends the present or the next [`wait`].
    pub(crate) fn wake(&self) {
        // The counter can only be full if it was not read 2^64 times: the thread is awake then.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
    fn drain(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

/// The result of [`wait`].
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Ready {
    /// The first descriptor has something to read, or is at its end or broken.
    pub(crate) readable: bool,
    /// It accepts bytes again.
    pub(crate) writable: bool,
}

/// Waits until `fd` is readable (or writable, if `write`), the waker is woken, or `timeout` is over.
pub(crate) fn wait(
    fd: Option<BorrowedFd<'_>>,
    write: bool,
    waker: &Waker,
    timeout: Option<Duration>,
) -> io::Result<Ready> {
    let timeout = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
    let interest = if write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut fds = vec![PollFd::new(&waker.0, PollFlags::IN)];
    fds.extend(fd.map(|fd| PollFd::from_borrowed_fd(fd, interest)));
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(Ready::default()),
        Err(error) => return Err(error.into()),
    }
    if !fds[0].revents().is_empty() {
        waker.drain();
    }
    let seen = fds.get(1).map_or(PollFlags::empty(), PollFd::revents);
    let broken = seen.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
    Ok(Ready { readable: broken || seen.contains(PollFlags::IN), writable: broken || seen.contains(PollFlags::OUT) })
}

/// Waits until one of `fds` is readable, the waker is woken, or `timeout` is over. Returns whether it was woken.
pub(crate) fn wait_for_any(fds: &[BorrowedFd<'_>], waker: &Waker, timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    fds.push(PollFd::new(&waker.0, PollFlags::IN));
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    let woken = fds.last().is_some_and(|waker| !waker.revents().is_empty());
    if woken {
        waker.drain();
    }
    Ok(woken)
}

/// A connected stream, encrypted or not.
pub(crate) struct Socket {
    fd: OwnedFd,
    network: Network,
    /// Over TCP only: nothing is encrypted that passes descriptors.
    tls: Option<Mutex<Session>>,
}

/// The bytes below TLS.
struct Encrypted<'a> {
    fd: &'a OwnedFd,
    is_blocking: bool,
}

impl Read for Encrypted<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let flags = if self.is_blocking { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let received = rustix::io::retry_on_intr(|| net::recv(self.fd, &mut *bytes, flags));
        received.map(|(len, _)| len).map_err(|error| in_time(error, self.is_blocking))
    }
}

impl Write for Encrypted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let wait = if self.is_blocking { SendFlags::empty() } else { SendFlags::DONTWAIT };
        let flags = wait | SendFlags::NOSIGNAL;
        let send = || net::sendmsg(self.fd, parts, &mut SendAncillaryBuffer::default(), flags);
        rustix::io::retry_on_intr(send).map_err(|error| in_time(error, self.is_blocking))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Socket {
    /// Connects to `address`, for at most `timeout`, or until `cancelled` holds when `waker` is woken.
    pub(crate) fn connect(
        network: Network,
        address: &str,
        timeout: Duration,
        waker: &Waker,
        cancelled: &dyn Fn() -> bool,
    ) -> io::Result<Socket> {
        if network == Network::Unix {
            return Ok(Socket { fd: connect_unix(address)?, network, tls: None });
        }
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in address.to_socket_addrs()? {
            match connect_tcp(address, timeout, waker, cancelled) {
                Ok(fd) => return Ok(Socket { fd, network, tls: None }),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The same socket, encrypted from its first byte on.
    pub(crate) fn encrypted(self, session: Session) -> Socket {
        Socket { tls: Some(Mutex::new(session)), ..self }
    }

    /// Whether a receive may leave bytes that no [`wait`] tells of.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether the other end is `server`, as far as it must prove that.
    pub(crate) fn is_of(&self, server: u32) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.lock().proves(server))
    }

    fn below_tls(&self, is_blocking: bool) -> Encrypted<'_> {
        Encrypted { fd: &self.fd, is_blocking }
    }

    /// Sends what is left of bytes that [`Socket::send`] took; [`io::ErrorKind::WouldBlock`] if something stays.
    pub(crate) fn send_rest(&self) -> io::Result<()> {
        self.tls.as_ref().map_or(Ok(()), |tls| tls.lock().flush(&mut self.below_tls(false)))
    }

    /// Takes what the kernel, or TLS, takes at once; [`io::ErrorKind::WouldBlock`] if that is nothing.
    pub(crate) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(tls) = &self.tls {
            return tls.lock().write(&mut self.below_tls(false), bytes);
        }
        Ok(rustix::io::retry_on_intr(|| net::send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL))?)
    }

    /// Sends all of `bytes`, the descriptor with the first of them, and blocks meanwhile, up to the send timeout.
    pub(crate) fn send_all(&self, mut bytes: &[u8], mut fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        if let Some(tls) = &self.tls {
            let (mut tls, mut below) = (tls.lock(), self.below_tls(true));
            while !bytes.is_empty() {
                let taken = tls.write(&mut below, bytes)?;
                bytes = &bytes[taken..];
            }
            return tls.flush(&mut below);
        }
        while !bytes.is_empty() {
            let sent = match fd {
                None => rustix::io::retry_on_intr(|| net::send(&self.fd, bytes, SendFlags::NOSIGNAL))
                    .map_err(|error| in_time(error, true))?,
                Some(passed) => {
                    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                    let mut ancillary = SendAncillaryBuffer::new(&mut space);
                    let passed = [passed];
                    ancillary.push(SendAncillaryMessage::ScmRights(&passed));
                    net::sendmsg(&self.fd, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?
                }
            };
            fd = None;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// Receives what there is, at least a byte unless the stream is at its end; descriptors that came along are
    /// appended to `fds`. If `block`, waits for it up to the receive timeout, else [`io::ErrorKind::WouldBlock`].
    pub(crate) fn recv(&self, bytes: &mut [u8], fds: &mut VecDeque<OwnedFd>, block: bool) -> io::Result<usize> {
        loop {
            match self.recv_once(bytes, fds, block) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    /// As [`Socket::recv`]; [`io::ErrorKind::Interrupted`] if what came was only TLS's own.
    pub(crate) fn recv_once(&self, bytes: &mut [u8], fds: &mut VecDeque<OwnedFd>, block: bool) -> io::Result<usize> {
        if let Some(tls) = &self.tls {
            // Only a thread that also sends waits here for more: no other thread needs the lock.
            return tls.lock().read(&mut self.below_tls(block), bytes);
        }
        let flags = if block { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        if self.network == Network::Tcp {
            let (received, _) = rustix::io::retry_on_intr(|| net::recv(&self.fd, &mut *bytes, flags))
                .map_err(|error| in_time(error, block))?;
            return Ok(received);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received = loop {
            match net::recvmsg(&self.fd, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags) {
                Err(Errno::INTR) => {}
                other => break other.map_err(|error| in_time(error, block))?,
            }
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                fds.extend(passed);
            }
        }
        Ok(received.bytes)
    }

    /// Bounds every blocking call.
    pub(crate) fn set_timeouts(&self, receive: Option<Duration>, send: Option<Duration>) -> io::Result<()> {
        sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Recv, receive)?;
        Ok(sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Send, send)?)
    }

    /// Ends both directions: threads that block in a call return, and the peer sees the end.
    pub(crate) fn shutdown(&self) {
        // It fails if the peer has ended it already.
        let _ = net::shutdown(&self.fd, net::Shutdown::Both);
    }

    /// For [`wait`].
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The address of the other end; none over a Unix-domain socket.
    pub(crate) fn peer_ip(&self) -> Option<IpAddr> {
        let peer = net::getpeername(&self.fd).ok()??;
        SocketAddr::try_from(peer).ok().map(|peer| peer.ip())
    }

    /// The other end, for log lines. Over a Unix-domain socket it must be a process of the same user.
    pub(crate) fn peer(&self) -> io::Result<String> {
        if self.network == Network::Tcp {
            let peer = net::getpeername(&self.fd)?.and_then(|peer| SocketAddr::try_from(peer).ok());
            return Ok(peer.map_or_else(|| "an unnamed peer".into(), |peer| peer.to_string()));
        }
        let peer = sockopt::socket_peercred(&self.fd)?;
        if peer.uid != rustix::process::geteuid() {
            let text = format!("process {} of user {}", peer.pid.as_raw_nonzero(), peer.uid.as_raw());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(format!("process {}", peer.pid.as_raw_nonzero()))
    }
}

/// The kernel calls it "try again" when a call that blocks has done so for as long as it may.
fn in_time(error: Errno, blocking: bool) -> io::Error {
    if blocking && error == Errno::AGAIN {
        return io::Error::new(io::ErrorKind::TimedOut, "nothing moved for too long");
    }
    error.into()
}

fn connect_tcp(
    address: SocketAddr,
    timeout: Duration,
    waker: &Waker,
    cancelled: &dyn Fn() -> bool,
) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&fd, true)?;
    match net::connect(&fd, &address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            let deadline = Instant::now() + timeout;
            while !wait(Some(fd.as_fd()), true, waker, Some(deadline.saturating_duration_since(Instant::now())))?
                .writable
            {
                if cancelled() || Instant::now() >= deadline {
                    return Err(io::ErrorKind::TimedOut.into());
                }
            }
            sockopt::socket_error(&fd)??;
        }
        Err(error) => return Err(error.into()),
    }
    rustix::io::ioctl_fionbio(&fd, false)?;
    Ok(fd)
}

/// Connects or fails at once. Only a listener whose backlog is full would make it wait, for any time.
fn connect_unix(address: &str) -> io::Result<OwnedFd> {
    let to = match address.strip_prefix('@') {
        Some(name) => net::SocketAddrUnix::new_abstract_name(name.as_bytes()),
        None => net::SocketAddrUnix::new(address),
    }?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match net::connect(&fd, &to) {
        Err(Errno::AGAIN) => Err(io::Error::new(io::ErrorKind::TimedOut, "it does not accept connections")),
        result => {
            result?;
            rustix::io::ioctl_fionbio(&fd, false)?;
            Ok(fd)
        }
    }
}

fn unix_address(address: &str) -> io::Result<UnixAddr> {
    match address.strip_prefix('@') {
        Some(name) => UnixAddr::from_abstract_name(name),
        None => UnixAddr::from_pathname(address),
    }
}

/// A listening socket.
pub(crate) struct Listener {
    fd: OwnedFd,
    network: Network,
    /// As peers connect to it.
    pub(crate) address: String,
    /// The socket's file, to be removed in the end.
    path: Option<PathBuf>,
}

impl Listener {
    /// Listens at `address`. The socket's file of a dead process is replaced.
    pub(crate) fn bind(network: Network, address: &str) -> io::Result<Listener> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("cannot listen at {address}: {error}"));
        if network == Network::Tcp {
            let listener = TcpListener::bind(address).map_err(named)?;
            net::listen(&listener, CONNECT_QUEUE)?;
            let address = listener.local_addr()?.to_string();
            return Ok(Listener { fd: listener.into(), network, address, path: None });
        }
        let unix = unix_address(address).map_err(named)?;
        let path = unix.as_pathname().map(PathBuf::from);
        if let Some(path) = path.as_ref().filter(|path| path.exists())
            && UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        {
            fs::remove_file(path).map_err(named)?;
        }
        let listener = UnixListener::bind_addr(&unix).map_err(named)?;
        Ok(Listener { fd: listener.into(), network, address: address.into(), path })
    }

    /// The next connection; [`io::ErrorKind::WouldBlock`] if the waker was woken first.
    pub(crate) fn accept(&self, waker: &Waker) -> io::Result<Socket> {
        if !wait(Some(self.fd.as_fd()), false, waker, None)?.readable {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let fd = net::accept_with(&self.fd, SocketFlags::CLOEXEC)?;
        if self.network == Network::Tcp {
            sockopt::set_tcp_nodelay(&fd, true)?;
        }
        Ok(Socket { fd, network: self.network, tls: None })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // It may have been removed with its directory.
            let _ = fs::remove_file(path);
        }
    }
}
