//! gt-dispatcher
