"""Three small trained models inside the package, and the script that trains them."""
