//! The admin port: HTTP for operators and their tools.
//!
//! | path | answers |
//! |---|---|
//! | `/` | a page for people |
//! | `/status` | JSON: the node's figures ([`NodeStatus`]) and, as `map`, the cluster as it knows it |
//! | `/metrics` | Prometheus's text format |
//! | `/livez` | 200 while the event loop turns, else 503 |
//! | `/readyz` | 200 when the node has joined the cluster and serves every region it is the primary of, else 503 and why |
//!
//! Once there are users, all but `/livez` and `/readyz` need one with the right to operate on all tables (`entry`).
//!
//! One thread with a single-threaded async runtime, so slow or idle HTTP clients cost no threads. `connection_limit`
//! bounds their number and their time. The thread holds no state of the node: it asks the event loop. `/livez` fails if
//! the event loop does not answer in time.

mod connection_limit;
mod entry;
mod page;
mod view;

use crate::metrics::Metrics;
use crate::runtime::channel::{Doorbell, Event};
use crate::runtime::cpu_accounting::CpuAccounting;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use connection_limit::ConnectionLimit;
pub(crate) use entry::Door;
use leeward_format::cluster::RegionMap;
use leeward_format::status::NodeStatus;
use leeward_security::tls::NodeTls;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long the event loop may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long a connection without a byte of an answer is kept. Prometheus may scrape less often: then it connects again
/// for each scrape.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the files of certificates are looked at.
const CERTIFICATES_INTERVAL: Duration = Duration::from_secs(2);
/// How many days before a certificate ends the log says so, and how often.
const EXPIRY_WARNING_DAYS: i64 = 30;
const EXPIRY_WARNING_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// The state of the node and the cluster, as the event loop knows it at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The node's figures.
    pub status: NodeStatus,
    /// The cluster as the node knows it.
    pub map: RegionMap,
}

/// The running admin port. Dropping it closes the port.
pub(crate) struct Admin {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Asks the event loop for the node's figures.
#[derive(Clone)]
pub(crate) struct Asking {
    pub(crate) doorbell: Doorbell,
    pub(crate) cpu_accounting: Arc<CpuAccounting>,
}

#[derive(Clone)]
struct Shared {
    asking: Asking,
    metrics: Arc<Metrics>,
    door: Door,
}

impl Admin {
    /// Serves `listener`, which must be non-blocking.
    ///
    /// With `tls` it speaks HTTPS, and reads the files of certificates again when they change, for all ports.
    pub(crate) fn start(
        listener: TcpListener,
        tls: Option<Arc<NodeTls>>,
        asking: Asking,
        metrics: Arc<Metrics>,
        door: Door,
    ) -> io::Result<Admin> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let listener = {
            let _entered = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let router = Router::new()
            .route("/", get(home))
            .route("/status", get(status))
            .route("/metrics", get(metrics_text))
            .layer(axum::middleware::from_fn_with_state(door.clone(), entry::check))
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .with_state(Shared { asking, metrics, door });
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("admin".into()).spawn(move || {
            let listener = ConnectionLimit::new(listener, tls.clone(), SESSION_TIMEOUT);
            let server = axum::serve(listener, router.into_make_service_with_connect_info::<entry::From>());
            // Connections that are open when the node stops are closed at once.
            let served = runtime.block_on(async {
                tokio::select! {
                    served = server.into_future() => served,
                    _ = stopped => Ok(()),
                    () = read_certificates_again(tls) => Ok(()),
                }
            });
            if let Err(error) = served {
                tracing::error!(%error, "the admin port is closed");
            }
        })?;
        Ok(Admin { stop: Some(stop), thread: Some(thread) })
    }
}

/// Looks for new certificates for ever.
async fn read_certificates_again(tls: Option<Arc<NodeTls>>) {
    let Some(tls) = tls else { return std::future::pending().await };
    // How often in a row there was this error. The second time counts: a certificate and its key are replaced one by one.
    let (mut last_error, mut times) = (String::new(), 0);
    let mut warned: Option<Instant> = None;
    loop {
        match tls.reload() {
            Ok(is_new) => {
                times = 0;
                if is_new {
                    tracing::info!("new certificates count for new connections");
                }
            }
            Err(error) => {
                times = if error.to_string() == last_error { times + 1 } else { 1 };
                if times == 2 {
                    tracing::error!(%error, "the new certificates cannot be used, the former ones stay");
                }
                last_error = error.to_string();
            }
        }
        let days = tls.days_left();
        if days < EXPIRY_WARNING_DAYS && warned.is_none_or(|warned| warned.elapsed() >= EXPIRY_WARNING_INTERVAL) {
            tracing::warn!(days, "the certificate of this node ends soon: renew it");
            warned = Some(Instant::now());
        }
        tokio::time::sleep(CERTIFICATES_INTERVAL).await;
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        // Dropping the sender is the signal.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Asking {
    /// Asks the event loop, and adds the CPU time of the process; `None` if the loop does not answer in time.
    async fn ask(&self) -> Option<Snapshot> {
        let (reply, answer) = oneshot::channel();
        self.doorbell.send(Event::Snapshot(reply));
        let mut snapshot = tokio::time::timeout(TIMEOUT, answer).await.ok()?.ok()?;
        snapshot.status.cpu = Some(self.cpu_accounting.status());
        Some(snapshot)
    }

    /// As [`Asking::ask`], for callers without an async runtime.
    pub(crate) fn ask_blocking(&self) -> Option<Snapshot> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().ok()?;
        runtime.block_on(self.ask())
    }
}

fn unanswered() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "the event loop does not answer\n").into_response()
}

async fn home(State(shared): State<Shared>) -> Response {
    match shared.asking.ask().await {
        Some(snapshot) => Html(page::render(&snapshot)).into_response(),
        None => unanswered(),
    }
}

async fn status(State(shared): State<Shared>) -> Response {
    match shared.asking.ask().await {
        Some(snapshot) => ([(header::CONTENT_TYPE, "application/json")], view::json(&snapshot)).into_response(),
        None => unanswered(),
    }
}

async fn metrics_text(State(shared): State<Shared>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match shared.asking.ask().await {
        Some(snapshot) => {
            ([(header::CONTENT_TYPE, OPEN_METRICS)], shared.metrics.encode(&snapshot.status)).into_response()
        }
        None => unanswered(),
    }
}

async fn livez(State(shared): State<Shared>) -> Response {
    match shared.asking.ask().await {
        Some(_) => "ok\n".into_response(),
        None => unanswered(),
    }
}

async fn readyz(State(shared): State<Shared>) -> Response {
    let Some((is_ready, text)) = shared.asking.ask().await.map(|snapshot| view::readiness(&snapshot)) else {
        return unanswered();
    };
    let code = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    // Anyone may ask whether it is ready, but why not is no one's business once there are users.
    let text = match (shared.door.is_open(), is_ready) {
        (true, _) => text,
        (false, true) => "ok\n".into(),
        (false, false) => "not ready\n".into(),
    };
    (code, text).into_response()
}

#[cfg(test)]
mod tests;
