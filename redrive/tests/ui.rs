//! What the compiler says of `#[retryable]` where it is used wrongly: something helpful. (Of what is right it says nothing:
//! `retryable_forms.rs` compiles.)
//!
//! `TRYBUILD=overwrite cargo test --test ui` writes down what it says now; read it before you believe it.

#[test]
fn what_is_wrong_is_explained() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/fail/*.rs");
}
