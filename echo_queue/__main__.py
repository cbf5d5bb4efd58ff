from echo_queue.cli import main

main()
