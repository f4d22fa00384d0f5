//! What cannot be stored, or run again from what was stored.

#![allow(unused_variables)]

use redrive::{Context, retryable};

#[retryable]
fn not_async() -> Result<(), String> {
    Ok(())
}

#[retryable]
async fn generic<T>(a: T) -> Result<(), String> {
    Ok(())
}

#[retryable]
async fn pattern((a, b): (u8, u8)) -> Result<(), String> {
    Ok(())
}

#[retryable]
async fn unnamed(a: impl std::fmt::Display) -> Result<(), String> {
    Ok(())
}

#[retryable]
async fn exclusive(a: &mut u8) -> Result<(), String> {
    Ok(())
}

#[retryable]
async fn nested(a: Option<&str>) -> Result<(), String> {
    Ok(())
}

#[retryable]
async fn late_context(a: u8, cx: &Context<'_>) -> Result<(), String> {
    Ok(())
}

#[retryable]
async fn no_result(a: u8) -> Option<u8> {
    None
}

#[retryable]
async fn nothing(a: u8) {}

struct Bank;

impl Bank {
    #[retryable]
    async fn method(&self, a: u8) -> Result<(), String> {
        Ok(())
    }
}

#[retryable]
struct NotAFn;

fn main() {}
