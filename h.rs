pub mod exhaustion; pub mod leak; pub mod replay; mod series_verdict; pub mod stats; pub mod tracker; mod view;
