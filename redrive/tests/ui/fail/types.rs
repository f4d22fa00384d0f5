//! What the compiler finds out about types, told of what the user wrote.

use redrive::retryable;

struct NotStored;

#[retryable]
async fn not_stored(a: &NotStored) -> Result<(), String> {
    Ok(())
}

struct NotShown;

#[retryable]
async fn not_shown() -> Result<(), NotShown> {
    Ok(())
}

#[retryable(success_if = "result.code == 200")]
async fn not_json() -> Result<NotStored, String> {
    Ok(NotStored)
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

async fn not_retryable() {}

#[retryable(on_success = not_retryable)]
async fn no_callback(a: &str) -> Result<(), String> {
    Ok(())
}

#[retryable(success_if = |r| r.code == 200, business("order", a.id))]
async fn no_such_field(a: &str) -> Result<u8, String> {
    Ok(5)
}

fn main() {}
