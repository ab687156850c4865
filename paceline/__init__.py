"""What the three services share. It never imports one of them."""
