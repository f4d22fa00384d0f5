//! A web service that takes orders: the payment is tried while the client waits, and made good if it fails.
//!
//! ```sh
//! cargo run --example axum_app            # then: curl -X POST localhost:8080/orders/7/pay
//! cargo run --example axum_app -- --once  # asks itself, and ends
//! ```

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use redrive::{CallError, Context, Engine, Store, retryable};
use serde_json::{Value, json};

/// What handlers need: clients, pools, settings.
struct App {
    channel_is_up: std::sync::atomic::AtomicBool,
}

#[derive(Debug, thiserror::Error)]
enum PayError {
    #[error("the payment channel is down")]
    Down,
    #[error(transparent)]
    Redrive(#[from] redrive::Error),
}

#[retryable(key = "pay-{order}", business("order", order))]
async fn pay(cx: &Context<'_>, order: u64) -> Result<String, PayError> {
    let up = cx.state::<App>()?.channel_is_up.swap(true, std::sync::atomic::Ordering::Relaxed);
    if up { Ok(format!("receipt {order}")) } else { Err(PayError::Down) }
}

/// 200 with the receipt; 202 if it will be paid later; 502 if it never will.
async fn pay_order(State(redrive): State<Engine>, Path(order): Path<u64>) -> (StatusCode, Json<Value>) {
    match redrive.call(pay(order)).await {
        Ok(receipt) => (StatusCode::OK, Json(json!({ "receipt": receipt }))),
        Err(CallError::Deferred { task_id, .. }) => (StatusCode::ACCEPTED, Json(json!({ "task": task_id }))),
        Err(e) => (StatusCode::BAD_GATEWAY, Json(json!({ "error": e.to_string() }))),
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let once = std::env::args().any(|argument| argument == "--once");
    let (database, address) =
        if once { ("sqlite::memory:", "127.0.0.1:0") } else { ("sqlite://shop.db", "127.0.0.1:8080") };
    let app = App { channel_is_up: (!once).into() };
    let redrive = Engine::builder(Store::open(database).await?).state(app).start().await?;
    let router = Router::new().route("/orders/{order}/pay", post(pay_order)).with_state(redrive.clone());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    let asked = listener.local_addr()?;
    let serving = axum::serve(listener, router);
    if once {
        tokio::select! {
            ended = serving => ended?,
            answers = ask_twice(asked) => println!("{}", answers?),
        }
    } else {
        tokio::select! {
            ended = serving => ended?,
            _ = tokio::signal::ctrl_c() => {}
        }
    }
    redrive.stop().await; // what runs is finished, or given back
    Ok(())
}

/// The first payment is deferred, as the channel is down; the second is not.
async fn ask_twice(address: std::net::SocketAddr) -> anyhow::Result<String> {
    let mut answers = Vec::new();
    for order in [7, 8] {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut connection = tokio::net::TcpStream::connect(address).await?;
        let request = format!("POST /orders/{order}/pay HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await?;
        answers.push(answer.lines().next().unwrap_or_default().to_owned());
    }
    anyhow::ensure!(answers == ["HTTP/1.1 202 Accepted", "HTTP/1.1 200 OK"], "{answers:?}");
    Ok(answers.join("\n"))
}
