//! What the compiler finds out about types, told of what the user wrote.

#![allow(unused_variables)]

use redrive::retryable;

struct NotJson;

struct NotShown;

#[retryable]
async fn not_shown() -> Result<(), NotShown> {
    Ok(())
}

#[retryable(success_if = "result.code == 200")]
async fn not_json() -> Result<NotJson, String> {
    Ok(NotJson)
}

#[retryable(deadline = order)]
async fn not_a_moment(order: u64) -> Result<(), String> {
    Ok(())
}

#[retryable]
async fn not_send() -> Result<(), String> {
    let shared = std::rc::Rc::new(5);
    std::future::ready(()).await;
    drop(shared);
    Ok(())
}

#[retryable(success_if = |r| r.code == 200, business("order", a.id))]
async fn no_such_field(a: &str) -> Result<u8, String> {
    Ok(5)
}

fn main() {}
